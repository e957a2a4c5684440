"""Matmuls and convolutions as nests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from wattree.capture.convert.atoms import Size
from wattree.capture.convert.trace import Label, NestTrace, Rule
from wattree.capture.recording import RecordedOperator
from wattree.graph import OperatorKind, SlidingWindow

_STEMS = {"k": "in", "n": "out", "in": "in", "out": "out"}
#: What the positions of convolutions and pools of each rank are called.
SPATIAL = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}


def _matmul(trace: NestTrace, operator: RecordedOperator, *, factors: Sequence[str]) -> None:
    """Add a matmul whose operands have the given labels, the last those of the output."""
    *reads, write = factors
    out = operator.outputs[0]
    inputs = list(zip(operator.inputs, reads, strict=True))
    # The moving operand comes first, an addend last: it is the bias.
    inputs = inputs[-2:] + inputs[:-2]
    rank_of = {index: len(trace.size(index)) for index, _ in inputs}
    is_linear = trace.is_parameter(inputs[1][0]) or trace.is_parameter(inputs[0][0])
    trace.add(
        operator,
        OperatorKind.MATMUL,
        "linear" if is_linear else "product",
        [(index, tuple(labels[-rank_of[index] :])) for index, labels in inputs],
        [(out, tuple(write[len(write) - len(trace.size(out)) :]))],
        stems=_STEMS,
    )


def _numbers(value: object, count: int) -> tuple[int, ...]:
    """Return one number for each dim; a list of one applies to all."""
    numbers = [int(v) for v in value] if isinstance(value, list) else [int(str(value))]
    return tuple(numbers * count if len(numbers) == 1 else numbers)


def _groups(
    trace: NestTrace, operator: RecordedOperator, channels: Size, *, transposed: bool
) -> Size | None:
    """Return the number of groups of so many channels, and how it grows."""
    rank = len(trace.size(operator.inputs[1])) - 2
    seen = operator.outputs[0] if transposed else operator.inputs[0]
    return trace.size(seen)[-rank - 1].over(channels)


def _convolution(trace: NestTrace, operator: RecordedOperator) -> None:
    x, weight, *bias = operator.inputs
    kernel = tuple(size.length for size in trace.size(weight)[2:])
    rank = len(kernel)
    spatial = SPATIAL.get(rank, tuple(f"position{i}" for i in range(rank)))
    get = operator.arguments.get
    transposed = bool(get("transposed", False))
    groups = int(get("groups", 1))
    whole, second = trace.size(weight)[:2]
    # Of each group. Groups are as many as samples where each has a weight of its own: only the
    # weight's first dim tells, which all groups share.
    group = _groups(trace, operator, second, transposed=transposed) or Size(groups)
    first = whole.over(group) or Size(whole.length // groups)
    inner, outer = (first, second) if transposed else (second, first)

    def channels(label: str, count: Size) -> Label:
        return label if groups == 1 else (("group", group), (label, count))

    lead: tuple[Label, ...] = ("batch",) if len(trace.size(x)) == rank + 2 else ()
    x_labels = (*lead, channels("in", inner), *spatial)
    taps = ("taps",) * rank
    if transposed:
        weight_labels = (channels("in", inner), "out", *taps)
    else:
        weight_labels = (channels("out", outer), "in", *taps)
    out_labels = (*lead, channels("out", outer), *spatial)
    trace.add(
        operator,
        OperatorKind.CONVOLUTION,
        "convolution",
        [(x, x_labels), (weight, weight_labels), *((b, (channels("out", outer),)) for b in bias)],
        [(operator.outputs[0], out_labels)],
        stems={name: name for name in ("group", "in", "out", "taps", *spatial)},
        opaque=frozenset({"taps"}),
        merged=frozenset({"taps"}),
        outputs_lead=not transposed,
        more={
            "window": SlidingWindow(
                kernel=kernel,
                stride=_numbers(get("stride", 1), rank),
                dilation=_numbers(get("dilation", 1), rank),
                groups=groups,
                transposed=transposed,
            )
        },
    )
    names = (*(("batch",) if lead else ()), "channel", *spatial)
    trace.name_dims(operator.outputs[0], names)
    trace.name_dims(x, names)


MATMULS: Mapping[str, Rule] = {
    **{
        name: partial(_matmul, factors=factors)
        for name, factors in {
            "mm": ("mk", "kn", "mn"),
            "addmm": ("mn", "mk", "kn", "mn"),
            "bmm": ("gmk", "gkn", "gmn"),
            "baddbmm": ("gmn", "gmk", "gkn", "gmn"),
            "mv": ("mk", "k", "m"),
            "addmv": ("m", "mk", "k", "m"),
            "dot": ("k", "k", ""),
            "vdot": ("k", "k", ""),
            "_euclidean_dist": ("gmk", "gnk", "gmn"),
        }.items()
    },
    **dict.fromkeys(("convolution", "_convolution"), _convolution),
}
