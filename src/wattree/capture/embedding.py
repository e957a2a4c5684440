"""The embedding block: token, position and type tables, their sum, norm, dropout, projection."""

from __future__ import annotations

from dataclasses import replace

from wattree.capture.parts import HIDDEN_DIMS, Builder, features
from wattree.capture.shape import TransformerShape
from wattree.graph import Block, DimRole, Operand, Operator, OperatorKind, Parameter

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
    build: Builder, *, name: str, tied_to: str | None = None, is_first: bool = True
) -> Block:
    """Return the block that turns token ids into hidden states.

    Args:
        tied_to: Token table that it shares, if it has none of its own.
        is_first: It holds what the model has once, whatever its embeddings.
    """
    shape = build.shape
    width, state = shape.embedding_width, "embedding.tokens"
    tokens = _table(build, "tokens", rows=shape.padded_vocab, width=width, tied_to=tied_to)
    operators = [_with_unread(tokens, shape.unread_parameters) if is_first else tokens]
    projected = "embedding.projection"

    def project() -> Operator:
        wide, bias = shape.hidden, shape.embedding_bias
        return build.linear(projected, state, shape.embedding_width, wide, bias=bias)

    if shape.embedding_projected_first and width != shape.hidden:
        operators.append(project())
        width, state = shape.hidden, projected
    rows = {
        "positions": shape.position_rows if shape.positions == "learned" else 0,
        "token_types": shape.token_types,
    }
    tables = [_table(build, what, rows=n, width=width) for what, n in rows.items() if n]
    if tables:
        summands = [state, *(table.path for table in tables)]
        state = "embedding.sum"
        added = build.elementwise(state, "add", *summands, width=width, kernels=len(tables))
        operators += [*tables, added]
    if shape.embedding_norm:
        operators.append(build.norm("embedding.norm", state, width=width))
        state = "embedding.norm"
    if shape.embedding_dropout:
        operators.append(build.dropout("embedding.dropout", state, width=width))
        state = "embedding.dropout"
    if width != shape.hidden:
        operators.append(project())
        state = projected
    if shape.disentangled_positions and is_first:
        operators.append(_relative_table(shape))
    return Block(name=name, operators=tuple(operators), output=state)


def token_lookup(build: Builder) -> Operator:
    """Return another look-up in the model's token table."""
    rows, width = build.shape.padded_vocab, build.shape.embedding_width
    return _table(build, "tokens", rows=rows, width=width, tied_to=TOKEN_TABLE)


def _table(
    build: Builder, what: str, *, rows: int, width: int, tied_to: str | None = None
) -> Operator:
    path = f"embedding.{what}"
    ids = "token_ids" if what == "tokens" else f"{what}_ids"
    dims, size = ("vocab", "hidden"), rows * width
    return Operator(
        path=path,
        kind=OperatorKind.EMBEDDING,
        function="embedding",
        dims=(
            *build.lead,
            features("vocab", rows, role=DimRole.CONTRACTED, units=vocabulary_units(rows)),
            features("hidden", width),
        ),
        inputs=(Operand(tensor=ids, dims=("batch", "seq")),),
        outputs=(Operand(tensor=path, dims=HIDDEN_DIMS),),
        parameters=(Parameter(name=f"{path}.weight", dims=dims, elements=size, tied_to=tied_to),),
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
    rows, dims = shape.disentangled_positions, ("position", "hidden")
    return Operator(
        path=path,
        kind=OperatorKind.NORM,
        function="layer_norm",
        dims=(features("position", rows), features("hidden", width, role=DimRole.OPAQUE)),
        outputs=(Operand(tensor="relative_positions", dims=dims),),
        parameters=(
            Parameter(name="embedding.relative.weight", dims=dims, elements=rows * width),
            Parameter(name=f"{path}.weight", dims=("hidden",), elements=width),
            Parameter(name=f"{path}.bias", dims=("hidden",), elements=width),
        ),
    )
