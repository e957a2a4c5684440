"""Element-wise operators, reductions, copies and fills as nests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from wattree.capture.convert.atoms import ONE
from wattree.capture.convert.trace import Label, NestTrace, Rule
from wattree.capture.recording import RecordedOperator
from wattree.graph import OperatorKind

#: Element-wise operators that PyTorch does not tag as pointwise, or not where they write in place.
ELEMENTWISE = (
    "abs",
    "copysign",
    "eq",
    "floor_divide",
    "ge",
    "gelu",
    "glu_jvp",
    "gt",
    "hardswish",
    "heaviside",
    "le",
    "log_sigmoid",
    "lt",
    "masked_fill",
    "mish",
    "ne",
    "prelu",
    "_prelu_kernel",
    "relu6",
    "rrelu_with_noise",
    "rsub",
    "special_erf",
    "special_expit",
    "threshold",
    "where",
    "xlogy",
    "imag",
    "complex",
    "polar",
    "log_sigmoid_forward",
    "rand_like",
    "randn_like",
    "normal",
    "uniform",
    "exponential",
    "random",
    "zero",
    "fill",
)
#: Gradients that a forward pass takes itself (`autograd.grad` inside a model, physics losses): each
#: element of the result follows from the same element of a gradient and of what was kept.
GRADIENTS = (
    "elu_backward",
    "hardshrink_backward",
    "hardsigmoid_backward",
    "hardswish_backward",
    "hardtanh_backward",
    "leaky_relu_backward",
    "log_sigmoid_backward",
    "mish_backward",
    "mse_loss_backward",
    "smooth_l1_loss_backward",
    "softplus_backward",
    "softshrink_backward",
)
#: The same along a dim, which is summed over on the way.
GRADIENTS_ALONG = ("_log_softmax_backward_data", "_softmax_backward_data")
COPIES = ("clone", "_to_copy", "copy", "contiguous", "to", "real", "view_as_complex_copy")
FILLS = (
    "arange",
    "full",
    "zeros",
    "ones",
    "rand",
    "randn",
    "randint",
    "scalar_tensor",
    "new_zeros",
    "new_ones",
    "new_full",
    "zeros_like",
    "ones_like",
    "full_like",
    "linspace",
    "eye",
    "tril_indices",
    "triu_indices",
    "randperm",
    "lift_fresh_copy",
    "tensor",
)
EMPTY = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")
REDUCTIONS = (
    "mean",
    "sum",
    "amax",
    "amin",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "norm",
    "linalg_vector_norm",
    "logsumexp",
    "prod",
    "any",
    "all",
    "max",
    "min",
    "argmax",
    "argmin",
    "median",
    "nansum",
    "count_nonzero",
    "aminmax",
)
LOSSES = (
    "mse_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "smooth_l1_loss",
    "huber_loss",
    "l1_loss",
    "soft_margin_loss",
    "kl_div",
)


def at(place: int, rank: int) -> int:
    """Return a dim counted from the front."""
    return place + rank if place < 0 else place


def aligned(trace: NestTrace, index: int, out_rank: int) -> list[Label]:
    """Return labels of a tensor that broadcasts: dims are counted from the last."""
    sizes = trace.size(index)
    return [None if s == ONE else f"d{out_rank - len(sizes) + i}" for i, s in enumerate(sizes)]


def elementwise(
    trace: NestTrace,
    operator: RecordedOperator,
    *,
    kind: OperatorKind = OperatorKind.ELEMENTWISE,
    function: str = "",
    opaque: Sequence[int] = (),
) -> None:
    """Add an operator whose operands broadcast to its results, element by element."""
    rank = max((len(trace.size(out)) for out in operator.outputs), default=0)
    if any(len(trace.size(index)) > rank for index in operator.inputs):
        rank = max(len(trace.size(index)) for index in operator.inputs)
    trace.add(
        operator,
        kind,
        function or target_name(operator),
        [(index, aligned(trace, index, rank)) for index in operator.inputs],
        [(out, aligned(trace, out, rank)) for out in operator.outputs],
        opaque=frozenset(f"d{at(place, rank)}" for place in opaque),
    )


def target_name(operator: RecordedOperator) -> str:
    """Return the plain name of an operator: `aten.add_.Tensor` is `add`."""
    name = operator.target.split(".")[1]
    return name.removesuffix("_") if operator.in_place and not name.startswith("_") else name


def _copy(trace: NestTrace, operator: RecordedOperator) -> None:
    if operator.in_place and len(operator.inputs) > 1:  # what was there is not read
        rank = len(trace.size(operator.outputs[0]))
        trace.add(
            operator,
            OperatorKind.COPY,
            "copy",
            [(index, aligned(trace, index, rank)) for index in operator.inputs[1:]],
            [(operator.outputs[0], aligned(trace, operator.outputs[0], rank))],
        )
        return
    cast = (
        trace.recording.tensors[operator.inputs[0]].dtype
        != trace.recording.tensors[operator.outputs[0]].dtype
    )
    elementwise(trace, operator, kind=OperatorKind.COPY, function="cast" if cast else "copy")


def _fill(
    trace: NestTrace, operator: RecordedOperator, *, function: str = "fill", **more: Any
) -> None:
    trace.add(
        operator,
        OperatorKind.COPY,
        function,
        [],
        [(out, aligned(trace, out, len(trace.size(out)))) for out in operator.outputs],
        **more,
    )


def _room(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add room without values, unless all of it is written at once: no kernel runs."""
    _fill(trace, operator, function="room", kernels=0)
    trace.unread += [trace.view(index).tensor for index in operator.outputs]


def reduced_places(operator: RecordedOperator, rank: int) -> list[int]:
    """Return the dims that a reduction sums over."""
    dims = operator.arguments.get("dim")
    if dims is None or dims == []:
        return list(range(rank))
    return [at(int(d), rank) for d in (dims if isinstance(dims, list) else [dims])]


def _reduction(trace: NestTrace, operator: RecordedOperator) -> None:
    source = operator.inputs[0]
    rank = len(trace.size(source))
    if len(operator.inputs) > 1:  # the larger of two: `max.other`
        elementwise(trace, operator)
        return
    gone = reduced_places(operator, rank)
    labels: list[Label] = [f"d{i}" for i in range(rank)]

    def left(out: int) -> list[Label]:
        if len(trace.size(out)) == rank:
            return [None if i in gone else label for i, label in enumerate(labels)]
        kept = [label for i, label in enumerate(labels) if i not in gone]
        return kept if len(kept) == len(trace.size(out)) else [None] * len(trace.size(out))

    trace.add(
        operator,
        OperatorKind.REDUCTION,
        target_name(operator),
        [(source, labels)],
        [(out, left(out)) for out in operator.outputs],
    )


def _loss(trace: NestTrace, operator: RecordedOperator) -> None:
    rank = max(len(trace.size(index)) for index in operator.inputs)
    out = operator.outputs[0]
    labels = (
        aligned(trace, out, rank) if len(trace.size(out)) == rank else [None] * len(trace.size(out))
    )
    kind = OperatorKind.ELEMENTWISE if len(trace.size(out)) == rank else OperatorKind.REDUCTION
    trace.add(
        operator,
        kind,
        target_name(operator),
        [(index, aligned(trace, index, rank)) for index in operator.inputs],
        [(out, labels)],
    )


def _random(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add random values; they may turn out to be the mask of a dropout."""
    elementwise(trace, operator)
    trace.noise.add(trace.storage_at(operator.outputs[0]))


def _scaled(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add a multiplication, which is a dropout if one factor is a random mask."""
    noise = [i for i in operator.inputs if trace.storage_at(i) in trace.noise]
    real = [i for i in operator.inputs if i not in noise]
    if len(noise) != 1 or len(real) != 1 or trace.size(noise[0]) != trace.size(real[0]):
        elementwise(trace, operator)
        return
    storage = trace.storage_at(noise[0])
    for nest in trace.nests:
        if not nest.dead and any(trace.storage_of(s.tensor) == storage for s in nest.writes):
            nest.dead = True
    rank = len(trace.size(operator.outputs[0]))
    trace.add(
        operator,
        OperatorKind.ELEMENTWISE,
        "dropout",
        [(real[0], aligned(trace, real[0], rank))],
        [(operator.outputs[0], aligned(trace, operator.outputs[0], rank))],
        mask_bytes=1.0,
    )


def _dropout(trace: NestTrace, operator: RecordedOperator) -> None:
    out = operator.outputs[0]
    rank = len(trace.size(out))
    trace.add(
        operator,
        OperatorKind.ELEMENTWISE,
        "dropout",
        [(operator.inputs[0], aligned(trace, operator.inputs[0], rank))],
        [(out, aligned(trace, out, rank))],
        mask_bytes=1.0,
    )


def _scan(trace: NestTrace, operator: RecordedOperator) -> None:
    elementwise(trace, operator, opaque=(int(operator.arguments.get("dim", 0)),))


POINTWISE: Mapping[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(COPIES, _copy),
    **dict.fromkeys(FILLS, _fill),
    **dict.fromkeys(EMPTY, _room),
    **dict.fromkeys(REDUCTIONS, _reduction),
    **dict.fromkeys(LOSSES, _loss),
    **dict.fromkeys(GRADIENTS, elementwise),
    "_weight_norm_interface": partial(elementwise, function="weight_norm"),
    **dict.fromkeys(GRADIENTS_ALONG, _scan),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"), _scan),
    "bernoulli": _random,
    "mul": _scaled,
    "native_dropout": _dropout,
    **dict.fromkeys(("tril", "triu"), partial(elementwise, kind=OperatorKind.ELEMENTWISE)),
}
