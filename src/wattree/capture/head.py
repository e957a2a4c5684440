"""The head block: final norm, projection to logits, loss. Also heads of encoder-only models."""

from __future__ import annotations

from wattree.capture.embedding import TOKEN_TABLE, vocabulary_units
from wattree.capture.parts import BATCH, HIDDEN_DIMS, elementwise, features, linear, norm
from wattree.capture.shape import TransformerShape
from wattree.graph import (
    Block,
    DimRole,
    Extent,
    IterationDim,
    Operand,
    Operator,
    OperatorKind,
    Tensor,
)


def hidden_state(shape: TransformerShape, seq: IterationDim, *, name: str = "hidden") -> Tensor:
    """Return the tensor that passes from block to block."""
    return Tensor(
        name=name, extents=(Extent(batch=1), seq.extent, Extent(coefficient=shape.hidden))
    )


def head_block(shape: TransformerShape, *, seq: IterationDim) -> Block | None:
    """Return the block after the last layer; None if the hidden states are the output."""
    operators: list[Operator] = []
    state = "hidden"
    if shape.final_norm:
        operators.append(
            norm(
                "final_norm",
                shape,
                reads=state,
                width=shape.hidden,
                seq=seq,
            )
        )
        state = "final_norm"
    if shape.next_sentence or shape.head == "pooler":
        operators += _pooler(shape, reads=state, seq=seq)
    if shape.head == "language_model":
        operators += _logits(shape, reads=state, seq=seq)
    elif shape.head == "masked_lm":
        operators += _masked_lm(shape, reads=state, seq=seq)
    elif shape.head == "discriminator":
        operators += _discriminator(shape, reads=state, seq=seq)
    elif shape.head == "none" and shape.embedding_projected_first:
        operators += _narrowed(shape, reads=state, seq=seq)
    if not operators:
        return None
    return Block(name="head", operators=tuple(operators), inputs=(hidden_state(shape, seq),))


def _logits(
    shape: TransformerShape, *, reads: str, seq: IterationDim, narrow: bool = True
) -> list[Operator]:
    """Return projection to the vocabulary and cross-entropy over it."""
    operators = _narrowed(shape, reads=reads, seq=seq) if narrow else []
    if operators:
        reads = "logits_projection"
    operators.append(
        linear(
            "logits",
            reads=reads,
            in_features=shape.embedding_width,
            out_features=shape.padded_vocab,
            out_name="vocab",
            out_units=vocabulary_units(shape.padded_vocab),
            bias=shape.head_bias,
            seq=seq,
            tied_to=TOKEN_TABLE if shape.tied_embedding else None,
        )
    )
    scores = "logits"
    if shape.logit_softcap:
        operators.append(
            elementwise(
                "logits_softcap",
                "softcap",
                reads=["logits"],
                width=shape.padded_vocab,
                last="vocab",
                units=vocabulary_units(shape.padded_vocab),
                seq=seq,
                saved=("logits_softcap",),
                kernels=3,
            )
        )
        scores = "logits_softcap"
    operators.append(_cross_entropy(shape, reads=scores, seq=seq))
    return operators


def _narrowed(shape: TransformerShape, *, reads: str, seq: IterationDim) -> list[Operator]:
    """Return the projection back to the width of the token table, if that differs (OPT-350M)."""
    if shape.embedding_width == shape.hidden:
        return []
    return [
        linear(
            "logits_projection",
            reads=reads,
            in_features=shape.hidden,
            out_features=shape.embedding_width,
            bias=shape.embedding_bias,
            seq=seq,
        )
    ]


def _cross_entropy(shape: TransformerShape, *, reads: str, seq: IterationDim) -> Operator:
    return Operator(
        path="loss",
        kind=OperatorKind.CROSS_ENTROPY,
        function="cross_entropy",
        dims=(
            BATCH,
            seq,
            features(
                "vocab",
                shape.padded_vocab,
                role=DimRole.CONTRACTED,
                units=vocabulary_units(shape.padded_vocab),
            ),
        ),
        inputs=(Operand(tensor=reads, dims=("batch", "seq", "vocab")),),
        outputs=(Operand(tensor="loss", dims=("batch", "seq")),),
        saved=(reads,),
        kernels=3,  # to float32, log-softmax, pick
    )


def _masked_lm(shape: TransformerShape, *, reads: str, seq: IterationDim) -> list[Operator]:
    """Return BERT's head: dense, activation, norm, then logits over the (tied) table."""
    width = shape.embedding_width
    return [
        *_transform(shape, reads=reads, width=width, bias=shape.transform_bias, seq=seq),
        norm(
            "transform_norm",
            shape,
            reads="transform_activation",
            width=width,
            seq=seq,
        ),
        *_logits(shape, reads="transform_norm", seq=seq, narrow=False),
    ]


def _transform(
    shape: TransformerShape, *, reads: str, width: int, bias: bool, seq: IterationDim
) -> list[Operator]:
    """Return a dense layer and its activation."""
    return [
        linear(
            "transform",
            reads=reads,
            in_features=shape.hidden,
            out_features=width,
            bias=bias,
            seq=seq,
        ),
        elementwise(
            "transform_activation",
            shape.activation,
            reads=["transform"],
            width=width,
            seq=seq,
            saved=("transform",),
        ),
    ]


def _discriminator(shape: TransformerShape, *, reads: str, seq: IterationDim) -> list[Operator]:
    """Return ELECTRA's head: dense, activation, one logit per token, binary cross-entropy."""
    return [
        *_transform(shape, reads=reads, width=shape.hidden, bias=True, seq=seq),
        linear(
            "logits",
            reads="transform_activation",
            in_features=shape.hidden,
            out_features=1,
            bias=True,
            seq=seq,
        ),
        elementwise(
            "loss",
            "binary_cross_entropy",
            reads=["logits"],
            width=1,
            seq=seq,
            saved=("logits",),
        ),
    ]


def _pooler(shape: TransformerShape, *, reads: str, seq: IterationDim) -> list[Operator]:
    """Return the dense layer on each sequence's first token, and BERT's two-way classifier."""
    first = features("first", 1, role=DimRole.OPAQUE)
    operators = [
        _first_token(shape, reads=reads, seq=seq),
        linear(
            "pooler",
            reads="first_token",
            in_features=shape.hidden,
            out_features=shape.hidden,
            bias=True,
            seq=first,
        ),
        elementwise(
            "pooler_activation",
            "tanh",
            reads=["pooler"],
            width=shape.hidden,
            seq=first,
            saved=("pooler_activation",),
        ),
    ]
    if shape.next_sentence:
        operators.append(
            linear(
                "next_sentence",
                reads="pooler_activation",
                in_features=shape.hidden,
                out_features=2,
                bias=True,
                seq=first,
            )
        )
    return operators


def _first_token(shape: TransformerShape, *, reads: str, seq: IterationDim) -> Operator:
    """Return the choice of each sequence's first position."""
    return Operator(
        path="first_token",
        kind=OperatorKind.ELEMENTWISE,
        function="select",
        dims=(
            BATCH,
            seq,
            features("first", 1, role=DimRole.OPAQUE),
            features("hidden", shape.hidden),
        ),
        inputs=(Operand(tensor=reads, dims=HIDDEN_DIMS),),
        outputs=(Operand(tensor="first_token", dims=("batch", "first", "hidden")),),
    )
