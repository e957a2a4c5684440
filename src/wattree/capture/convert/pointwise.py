"""Element-wise operators, reductions, copies and fills as nests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from wattree.capture.convert.atoms import ONE
from wattree.capture.convert.trace import Label, Rule, Trace
from wattree.capture.recording import RecordedOperator
from wattree.graph import OperatorKind

__all__ = ["POINTWISE", "aligned", "at", "reduced_places"]

_ELEMENTWISE = (
    "abs",
    "acos",
    "acosh",
    "add",
    "addcdiv",
    "addcmul",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "ceil",
    "celu",
    "clamp",
    "clamp_max",
    "clamp_min",
    "copysign",
    "cos",
    "cosh",
    "deg2rad",
    "digamma",
    "div",
    "elu",
    "eq",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "frac",
    "ge",
    "gelu",
    "glu_jvp",
    "gt",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "heaviside",
    "hypot",
    "i0",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "le",
    "leaky_relu",
    "lerp",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_sigmoid",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logit",
    "lt",
    "masked_fill",
    "maximum",
    "minimum",
    "mish",
    "mul",
    "nan_to_num",
    "ne",
    "neg",
    "pow",
    "prelu",
    "_prelu_kernel",
    "reciprocal",
    "relu",
    "relu6",
    "remainder",
    "round",
    "rrelu_with_noise",
    "rsqrt",
    "rsub",
    "selu",
    "sgn",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinc",
    "sinh",
    "softplus",
    "softshrink",
    "special_erf",
    "special_expit",
    "sqrt",
    "square",
    "sub",
    "tan",
    "tanh",
    "threshold",
    "trunc",
    "where",
    "xlogy",
    "angle",
    "real",
    "imag",
    "complex",
    "polar",
    "log_sigmoid_forward",
    "rand_like",
    "randn_like",
    "bernoulli",
    "normal",
    "uniform",
    "exponential",
    "random",
    "zero",
    "fill",
)
#: Gradients that a forward pass takes itself (`autograd.grad` inside a model, physics losses): each
#: element of the result follows from the same element of a gradient and of what was kept.
_GRADIENTS = (
    "elu_backward",
    "gelu_backward",
    "hardshrink_backward",
    "hardsigmoid_backward",
    "hardswish_backward",
    "hardtanh_backward",
    "leaky_relu_backward",
    "log_sigmoid_backward",
    "logit_backward",
    "mish_backward",
    "mse_loss_backward",
    "native_dropout_backward",
    "sigmoid_backward",
    "silu_backward",
    "smooth_l1_loss_backward",
    "softplus_backward",
    "softshrink_backward",
    "tanh_backward",
    "threshold_backward",
)
#: The same along a dim, which is summed over on the way.
_GRADIENTS_ALONG = ("_log_softmax_backward_data", "_softmax_backward_data")
_COPIES = ("clone", "_to_copy", "copy", "contiguous", "to", "real", "view_as_complex_copy")
_FILLS = (
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
_EMPTY = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")
_REDUCTIONS = (
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
_LOSSES = (
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


def aligned(trace: Trace, index: int, out_rank: int) -> list[Label]:
    """Return labels of a tensor that broadcasts: dims are counted from the last."""
    sizes = trace.size(index)
    return [None if s == ONE else f"d{out_rank - len(sizes) + i}" for i, s in enumerate(sizes)]


def _elementwise(
    trace: Trace,
    operator: RecordedOperator,
    *,
    kind: OperatorKind = OperatorKind.ELEMENTWISE,
    function: str = "",
    opaque: Sequence[int] = (),
) -> None:
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


def _copy(trace: Trace, operator: RecordedOperator) -> None:
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
    _elementwise(trace, operator, kind=OperatorKind.COPY, function="cast" if cast else "copy")


def _fill(trace: Trace, operator: RecordedOperator) -> None:
    trace.add(
        operator,
        OperatorKind.COPY,
        "fill",
        [],
        [(out, aligned(trace, out, len(trace.size(out)))) for out in operator.outputs],
    )


def _nothing(trace: Trace, operator: RecordedOperator) -> None:
    """Room without values: no kernel runs."""


def reduced_places(operator: RecordedOperator, rank: int) -> list[int]:
    """Return the dims that a reduction sums over."""
    dims = operator.arguments.get("dim")
    if dims is None or dims == []:
        return list(range(rank))
    return [at(int(d), rank) for d in (dims if isinstance(dims, list) else [dims])]


def _reduction(trace: Trace, operator: RecordedOperator) -> None:
    source = operator.inputs[0]
    rank = len(trace.size(source))
    if len(operator.inputs) > 1:  # the larger of two: `max.other`
        _elementwise(trace, operator)
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


def _loss(trace: Trace, operator: RecordedOperator) -> None:
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


def _random(trace: Trace, operator: RecordedOperator) -> None:
    """Add random values; they may turn out to be the mask of a dropout."""
    _elementwise(trace, operator)
    trace.noise.add(trace.storage_at(operator.outputs[0]))


def _scaled(trace: Trace, operator: RecordedOperator) -> None:
    """Add a product, a dropout where one factor is a random mask."""
    noise = [i for i in operator.inputs if trace.storage_at(i) in trace.noise]
    real = [i for i in operator.inputs if i not in noise]
    if len(noise) != 1 or len(real) != 1 or trace.size(noise[0]) != trace.size(real[0]):
        _elementwise(trace, operator)
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


def _dropout(trace: Trace, operator: RecordedOperator) -> None:
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


def _scan(trace: Trace, operator: RecordedOperator) -> None:
    _elementwise(trace, operator, opaque=(int(operator.arguments.get("dim", 0)),))


POINTWISE: Mapping[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_COPIES, _copy),
    **dict.fromkeys(_FILLS, _fill),
    **dict.fromkeys(_EMPTY, _nothing),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(_LOSSES, _loss),
    **dict.fromkeys(_GRADIENTS, _elementwise),
    "_weight_norm_interface": partial(_elementwise, function="weight_norm"),
    **dict.fromkeys(_GRADIENTS_ALONG, _scan),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"), _scan),
    "bernoulli": _random,
    "mul": _scaled,
    "native_dropout": _dropout,
    **dict.fromkeys(("tril", "triu"), partial(_elementwise, kind=OperatorKind.ELEMENTWISE)),
}
