"""The head block: final norm, projection to logits, loss. Also heads of encoder-only models."""

from __future__ import annotations

from wattree.capture.embedding import TOKEN_TABLE, vocabulary_units
from wattree.capture.parts import HIDDEN_DIMS, Builder, features
from wattree.graph import Block, DimRole, Extent, Operand, Operator, OperatorKind, Tensor


def hidden_state(build: Builder, *, name: str = "hidden") -> Tensor:
    """Return the tensor that passes from block to block."""
    width = Extent(coefficient=build.shape.hidden)
    return Tensor(name=name, extents=(Extent(batch=1), build.seq.extent, width))


def head_block(build: Builder) -> Block | None:
    """Return the block after the last layer; None if the hidden states are the output."""
    shape = build.shape
    operators: list[Operator] = []
    state = "hidden"
    if shape.final_norm:
        operators.append(build.norm("final_norm", state))
        state = "final_norm"
    if shape.next_sentence or shape.head == "pooler":
        operators += _pooler(build, reads=state)
    if shape.head == "language_model":
        operators += _logits(build, reads=state)
    elif shape.head == "masked_lm":
        operators += _masked_lm(build, reads=state)
    elif shape.head == "discriminator":
        operators += _discriminator(build, reads=state)
    elif shape.head == "none" and shape.embedding_projected_first:
        operators += _narrowed(build, reads=state)
    if not operators:
        return None
    return Block(name="head", operators=tuple(operators), inputs=(hidden_state(build),))


def _logits(build: Builder, *, reads: str, narrow: bool = True) -> list[Operator]:
    """Return projection to the vocabulary and cross-entropy over it."""
    shape, scores = build.shape, "logits"
    rows, units = shape.padded_vocab, vocabulary_units(shape.padded_vocab)
    operators = _narrowed(build, reads=reads) if narrow else []
    operators.append(
        build.linear(
            scores,
            operators[-1].path if operators else reads,
            shape.embedding_width,
            rows,
            out_name="vocab",
            out_units=units,
            bias=shape.head_bias,
            tied_to=TOKEN_TABLE if shape.tied_embedding else None,
        )
    )
    if shape.logit_softcap:
        scores = "logits_softcap"
        operators.append(
            build.elementwise(
                scores,
                "softcap",
                "logits",
                width=rows,
                last="vocab",
                units=units,
                kernels=3,  # quotient, tanh, product
            )
        )
    vocabulary = features("vocab", rows, role=DimRole.CONTRACTED, units=units)
    loss = Operator(
        path="loss",
        kind=OperatorKind.CROSS_ENTROPY,
        function="cross_entropy",
        dims=(*build.lead, vocabulary),
        inputs=(Operand(tensor=scores, dims=("batch", "seq", "vocab")),),
        outputs=(Operand(tensor="loss", dims=("batch", "seq")),),
        saved=(scores,),
        kernels=3,  # to float32, log-softmax, pick
    )
    return [*operators, loss]


def _narrowed(build: Builder, *, reads: str) -> list[Operator]:
    """Return the projection back to the width of the token table, if that differs (OPT-350M)."""
    wide, narrow, bias = build.shape.hidden, build.shape.embedding_width, build.shape.embedding_bias
    if narrow == wide:
        return []
    return [build.linear("logits_projection", reads, wide, narrow, bias=bias)]


def _masked_lm(build: Builder, *, reads: str) -> list[Operator]:
    """Return BERT's head: dense, activation, norm, then logits over the (tied) table."""
    width = build.shape.embedding_width
    return [
        *_transform(build, reads=reads, width=width, bias=build.shape.transform_bias),
        build.norm("transform_norm", "transform_activation", width=width),
        *_logits(build, reads="transform_norm", narrow=False),
    ]


def _transform(build: Builder, *, reads: str, width: int, bias: bool) -> list[Operator]:
    """Return a dense layer and its activation."""
    path, shape = "transform", build.shape
    return [
        build.linear(path, reads, shape.hidden, width, bias=bias),
        build.elementwise(f"{path}_activation", shape.activation, path, width=width, saved=(path,)),
    ]


def _discriminator(build: Builder, *, reads: str) -> list[Operator]:
    """Return ELECTRA's head: dense, activation, one logit per token, binary cross-entropy."""
    width = build.shape.hidden
    return [
        *_transform(build, reads=reads, width=width, bias=True),
        build.linear("logits", "transform_activation", width, 1, bias=True),
        build.elementwise("loss", "binary_cross_entropy", "logits", width=1, saved=("logits",)),
    ]


def _pooler(build: Builder, *, reads: str) -> list[Operator]:
    """Return the dense layer on each sequence's first token, and BERT's two-way classifier."""
    first = Builder(build.shape, features("first", 1, role=DimRole.OPAQUE))
    width, activation = build.shape.hidden, "pooler_activation"
    choice = Operator(
        path="first_token",
        kind=OperatorKind.ELEMENTWISE,
        function="select",
        dims=(*build.lead, first.seq, features("hidden", width)),
        inputs=(Operand(tensor=reads, dims=HIDDEN_DIMS),),
        outputs=(Operand(tensor="first_token", dims=("batch", "first", "hidden")),),
    )
    operators = [
        choice,
        first.linear("pooler", "first_token", width, width, bias=True),
        first.elementwise(activation, "tanh", "pooler", saved=(activation,)),
    ]
    if build.shape.next_sentence:
        operators.append(first.linear("next_sentence", activation, width, 2, bias=True))
    return operators
