"""The embedding block: token, position and type tables, their sum, norm, dropout, projection."""

from __future__ import annotations

from dataclasses import replace

from wattree.capture.parts import (
    BATCH,
    HIDDEN_DIMS,
    dropout,
    elementwise,
    features,
    linear,
    norm,
)
from wattree.capture.shape import TransformerShape
from wattree.graph import (
    Block,
    DimRole,
    IterationDim,
    Operand,
    Operator,
    OperatorKind,
    Parameter,
)

#: Global name of the token table, for the parameters tied to it.
TOKEN_TABLE = "embedding/embedding.tokens.weight"  # noqa: S105 (a token of text)

#: Global name of DeBERTa's table of relative positions.
RELATIVE_TABLE = "embedding/embedding.relative.weight"

#: Rows to whose multiple frameworks pad a table before they split it (Megatron-LM's
#: `--make-vocab-size-divisible-by`, default 128).
_PADDED_TO = 128


def vocabulary_units(rows: int) -> int:
    """Return the rows of a table once it is padded to be split.

    Sizes and work stay those of the unpadded table, the padding being below 128 rows; only the
    question of which degrees divide the table is answered with it.
    """
    return -(-rows // _PADDED_TO) * _PADDED_TO


def embedding_block(
    shape: TransformerShape,
    *,
    name: str,
    seq: IterationDim,
    tied_to: str | None = None,
    is_first: bool = True,
) -> Block:
    """Return the block that turns token ids into hidden states.

    Args:
        tied_to: Token table that it shares, if it has none of its own.
        is_first: It holds what the model has once, whatever its embeddings.
    """
    width, state = shape.embedding_width, "embedding.tokens"
    tokens = _table("tokens", rows=shape.padded_vocab, width=width, seq=seq, tied_to=tied_to)
    operators = [_with_unread(tokens, shape.unread_parameters) if is_first else tokens]
    if shape.embedding_projected_first and width != shape.hidden:
        operators.append(_projection(shape, reads=state, seq=seq))
        width, state = shape.hidden, "embedding.projection"
    tables = _further_tables(shape, width=width, seq=seq)
    if tables:
        summands = [state, *(table.path for table in tables)]
        state = "embedding.sum"
        operators += [
            *tables,
            elementwise(state, "add", reads=summands, width=width, seq=seq, kernels=len(tables)),
        ]
    if shape.embedding_norm:
        operators.append(norm("embedding.norm", shape, reads=state, width=width, seq=seq))
        state = "embedding.norm"
    if shape.embedding_dropout:
        operators.append(dropout("embedding.dropout", reads=state, width=width, seq=seq))
        state = "embedding.dropout"
    if width != shape.hidden:
        operators.append(_projection(shape, reads=state, seq=seq))
        state = "embedding.projection"
    if shape.disentangled_positions and is_first:
        operators.append(_relative_table(shape))
    return Block(name=name, operators=tuple(operators), output=state)


def token_lookup(shape: TransformerShape, *, seq: IterationDim) -> Operator:
    """Return another look-up in the model's token table."""
    width = shape.embedding_width
    return _table("tokens", rows=shape.padded_vocab, width=width, seq=seq, tied_to=TOKEN_TABLE)


def _further_tables(shape: TransformerShape, *, width: int, seq: IterationDim) -> list[Operator]:
    tables = []
    if shape.positions == "learned":
        tables.append(_table("positions", rows=shape.position_rows, width=width, seq=seq))
    if shape.token_types:
        tables.append(_table("token_types", rows=shape.token_types, width=width, seq=seq))
    return tables


def _projection(shape: TransformerShape, *, reads: str, seq: IterationDim) -> Operator:
    return linear(
        "embedding.projection",
        reads=reads,
        in_features=shape.embedding_width,
        out_features=shape.hidden,
        bias=shape.embedding_bias,
        seq=seq,
    )


def _table(
    what: str, *, rows: int, width: int, seq: IterationDim, tied_to: str | None = None
) -> Operator:
    path = f"embedding.{what}"
    ids = "token_ids" if what == "tokens" else f"{what}_ids"
    return Operator(
        path=path,
        kind=OperatorKind.EMBEDDING,
        function="embedding",
        dims=(
            BATCH,
            seq,
            features("vocab", rows, role=DimRole.CONTRACTED, units=vocabulary_units(rows)),
            features("hidden", width),
        ),
        inputs=(Operand(tensor=ids, dims=("batch", "seq")),),
        outputs=(Operand(tensor=path, dims=HIDDEN_DIMS),),
        parameters=(
            Parameter(
                name=f"{path}.weight",
                dims=("vocab", "hidden"),
                elements=rows * width,
                tied_to=tied_to,
            ),
        ),
    )


def _with_unread(table: Operator, elements: int) -> Operator:
    """Return the table with additional parameters that take memory and are never used.

    They have no gradient, so that optimizers skip them as if they were frozen.
    """
    if not elements:
        return table
    unread = Parameter(name="embedding.unread", dims=(), elements=elements, trainable=False)
    return replace(table, parameters=(*table.parameters, unread))


def _relative_table(shape: TransformerShape) -> Operator:
    """Return DeBERTa's normalized table of relative positions, which every layer projects."""
    path, width = "embedding.relative_norm", shape.hidden
    rows = shape.disentangled_positions
    return Operator(
        path=path,
        kind=OperatorKind.NORM,
        function="layer_norm",
        dims=(features("position", rows), features("hidden", width, role=DimRole.OPAQUE)),
        outputs=(Operand(tensor="relative_positions", dims=("position", "hidden")),),
        parameters=(
            Parameter(
                name="embedding.relative.weight",
                dims=("position", "hidden"),
                elements=rows * width,
            ),
            Parameter(name=f"{path}.weight", dims=("hidden",), elements=width),
            Parameter(name=f"{path}.bias", dims=("hidden",), elements=width),
        ),
    )
