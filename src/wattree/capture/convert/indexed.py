"""Gathers, writes at indices, sorts, transforms and gates as nests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from wattree.capture.convert.atoms import Size
from wattree.capture.convert.pointwise import at, elementwise, rules_of, target_name
from wattree.capture.convert.structured import add_unrelated
from wattree.capture.convert.trace import Label, NestTrace, Rule
from wattree.capture.recording import RecordedOperator
from wattree.graph import OperatorKind

#: Points that one kernel transforms, and kernels of the longest transforms (Govindaraju et al.,
#: "High performance discrete Fourier transforms", SC 2008, section 4; three dims at once).
_ONE_KERNEL_POINTS, _MOST_KERNELS = 4096, 6


def _index(trace: NestTrace, operator: RecordedOperator) -> None:
    x, out = operator.inputs[0], operator.outputs[0]
    places = operator.arguments.get("indices")
    if not isinstance(places, list):
        add_unrelated(trace, operator, kind=OperatorKind.GATHER)
        return
    sizes = trace.size(x)
    picked = [i for i, p in enumerate(places) if p is not None]
    indices = [operator.inputs[places[i]["tensor"]] for i in picked]
    depth = max((len(trace.size(i)) for i in indices), default=0)
    index_labels: list[Label] = [f"i{j}" for j in range(depth)]
    x_labels: list[Label] = [f"rows{i}" if i in picked else f"d{i}" for i in range(len(sizes))]
    kept: list[Label] = [label for i, label in enumerate(x_labels) if i not in picked]
    together = picked == list(range(picked[0], picked[0] + len(picked))) if picked else True
    first = sum(i not in picked for i in range(picked[0])) if picked and together else 0
    out_labels = [*kept[:first], *index_labels, *kept[first:]]
    if len(out_labels) != len(trace.size(out)):
        add_unrelated(trace, operator, kind=OperatorKind.GATHER)
        return
    trace.add(
        operator,
        OperatorKind.GATHER,
        "index",
        [
            (x, x_labels),
            *((i, index_labels[depth - len(trace.size(i)) :]) for i in indices),
        ],
        [(out, out_labels)],
        opaque=frozenset(f"rows{i}" for i in picked),
        outputs_lead=True,
    )


def _index_select(trace: NestTrace, operator: RecordedOperator) -> None:
    x, index = operator.inputs[:2]
    rank = len(trace.size(x))
    place = at(int(operator.arguments.get("dim", 0)), rank)
    labels: list[Label] = [f"d{i}" for i in range(rank)]
    labels[place] = "rows"
    out_labels = list(labels)
    out_labels[place] = "picked"
    trace.add(
        operator,
        OperatorKind.GATHER,
        "index",
        [(x, labels), (index, ["picked"])],
        [(operator.outputs[0], out_labels)],
        opaque=frozenset({"rows"}),
        outputs_lead=True,
    )


def _sampled(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add values of an image at places that a grid names, between its pixels."""
    x, grid = operator.inputs[:2]
    space = range(2, len(trace.size(x)))
    places: list[Label] = [f"at{i}" for i in space]
    trace.add(
        operator,
        OperatorKind.GATHER,
        "grid_sampler",
        [(x, ["d0", "d1", *(f"pixels{i}" for i in space)]), (grid, ["d0", *places, "axis"])],
        [(operator.outputs[0], ["d0", "d1", *places])],
        opaque=frozenset({"axis", *(f"pixels{i}" for i in space)}),
        outputs_lead=True,
    )


def _gather(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add a gather or scatter along one dim; the others are walked together."""
    out = operator.outputs[0]
    rank = len(trace.size(out))
    place = at(int(operator.arguments.get("dim", 0)), rank) if rank else 0
    tensors = [i for i in operator.inputs if len(trace.size(i)) == rank]
    name = target_name(operator)
    trace.add(
        operator,
        OperatorKind.GATHER,
        "scatter" if "scatter" in name else "index",
        [(i, [f"d{p}" for p in range(rank)]) for i in tensors],
        [(out, [f"d{p}" for p in range(rank)])],
        opaque=frozenset({f"d{place}"}),
        outputs_lead=True,
    )


def _sort(trace: NestTrace, operator: RecordedOperator) -> None:
    x = operator.inputs[0]
    rank = len(trace.size(x))
    place = at(int(operator.arguments.get("dim", -1) or -1), rank) if rank else 0
    # Rows of all samples in one: each rank sorts those of its own samples.
    spans_samples = rank > 0 and bool(trace.size(x)[place].batch)
    outputs = [out for out in operator.outputs if len(trace.size(out)) == rank]
    opaque = () if spans_samples else (place,)
    elementwise(trace, operator, kind=OperatorKind.SORT, inputs=[x], outputs=outputs, opaque=opaque)


def _fft(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add a transform: a kernel for each dim, two for a long one, named after how many they are."""
    over = [int(d) for d in operator.arguments.get("dim", [-1])]
    inputs = operator.inputs[:1]
    lengths = [max(trace.size(i)[d].length for i in (*inputs, *operator.outputs)) for d in over]
    kernels = min(sum(1 + (length > _ONE_KERNEL_POINTS) for length in lengths), _MOST_KERNELS)
    elementwise(
        trace, operator, kind=OperatorKind.FFT, inputs=inputs, opaque=over, kernels=kernels,
        function=f"{target_name(operator).removeprefix('_')}_{kernels}",
    )  # fmt: skip


def _glu(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add a gate: half of a dim scales the other half."""
    x, out = operator.inputs[0], operator.outputs[0]
    rank = len(trace.size(x))
    place = at(int(operator.arguments.get("dim", -1)), rank)
    labels: list[Label] = [f"d{i}" for i in range(rank)]
    halves = list(labels)
    halves[place] = (("half", Size(2)), (f"d{place}", trace.size(out)[place]))
    trace.add(
        operator,
        OperatorKind.ELEMENTWISE,
        "glu",
        [(x, halves)],
        [(out, labels)],
        opaque=frozenset({"half"}),
    )


_put = partial(add_unrelated, kind=OperatorKind.GATHER, function="scatter")
#: Searches whose number of results depends on values.
_found = partial(add_unrelated, kind=OperatorKind.SORT)

INDEXED: Mapping[str, Rule] = rules_of(
    "indexed",
    index=_index,
    index_select=_index_select,
    gather=_gather,
    sampled=_sampled,
    put=_put,
    sort=_sort,
    found=_found,
    fft=_fft,
    glu=_glu,
)
