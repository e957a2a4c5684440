"""Checks that an execution graph can be executed: shapes, ids and signs.

One compiled pass tells whether all is well, as it nearly always is; only then what is wrong is
looked for, array by array.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Floats, Integers
from wattree.compiled import kernel, part
from wattree.errors import SimulationError
from wattree.graph import ExecutionGraph, TaskKind

_ROWS = (
    ("stream_offsets", "stream_ids"),
    ("successor_offsets", "successors"),
    ("flow_offsets", "flow_links"),
)
_NUMBERS = ("latency_s", "work_s", "alloc_bytes", "free_bytes", "flow_bytes_per_s")
_COMPUTE, _HOST = int(TaskKind.COMPUTE), int(TaskKind.HOST)
_KINDS = len(TaskKind)
#: Bits of floating-point numbers (IEEE 754): from here on infinite or not a number; and of -0.
_INFINITY, _MINUS_ZERO = 0x7FF0_0000_0000_0000, -(2**63)
_LARGEST_COUNT = 2**30 - 1  # the kernels number tasks twice (ends, begins of work) in 32 bits


def check_graph(graph: ExecutionGraph) -> None:
    """Reject a graph whose arrays have inconsistent shapes or invalid values.

    Raises:
        SimulationError: Lists every fault, not only the first.
    """
    faults = list(_length_faults(graph))
    if not faults:
        faults = list(_small_faults(graph))
        if not _is_sound(graph):
            faults = list(_order_faults(graph)) or [*_value_faults(graph), *faults]
    if faults:
        raise SimulationError("\n".join(["execution graph rejected:", *(f"  {f}" for f in faults)]))


def _length_faults(graph: ExecutionGraph) -> Iterator[str]:
    tasks, streams = graph.tasks, len(graph.stream_class)
    classes, links = len(graph.class_ranks), len(graph.link_bandwidth_bytes_per_s)
    lengths = (
        (tasks, ("latency_s", "work_s", "overlaps", "alloc_bytes", "free_bytes", "name_ids")),
        (streams, ("stream_kind",)),
        (classes, ("class_names", "static_bytes")),
        (links, ("link_names",)),
        (
            len(graph.flow_links),
            ("flow_bytes_per_s", "flow_counts", "flow_largest_bytes_per_s"),
        ),
    )
    for expected, names in lengths:
        for name in names:
            values = getattr(graph, name)
            if values is not None and (found := len(values)) != expected:
                yield f"{name}: {found} values, expected {expected}"
    for offsets_name, values_name in _ROWS:
        offsets, values = getattr(graph, offsets_name), len(getattr(graph, values_name))
        if len(offsets) != tasks + 1:
            yield f"{offsets_name}: {len(offsets)} offsets, expected {tasks + 1}"
        if values > _LARGEST_COUNT or tasks > _LARGEST_COUNT:
            yield f"{values_name}: more than {_LARGEST_COUNT} values; split the graph"


def _order_faults(graph: ExecutionGraph) -> Iterator[str]:
    for offsets_name, values_name in _ROWS:
        offsets, values = getattr(graph, offsets_name), len(getattr(graph, values_name))
        if offsets[0] != 0 or offsets[-1] != values or (offsets[1:] < offsets[:-1]).any():
            yield f"{offsets_name}: must rise from 0 to {values}, the length of {values_name}"


def _small_faults(graph: ExecutionGraph) -> Iterator[str]:
    """Return the faults that can be found without visiting every task."""
    yield from _id_faults(graph, "stream_class", len(graph.class_names), "rank classes")
    yield from _number_faults("static_bytes", graph.static_bytes)
    yield from _number_faults("link_bandwidth_bytes_per_s", graph.link_bandwidth_bytes_per_s)
    if (graph.link_bandwidth_bytes_per_s == 0.0).any():
        yield "link_bandwidth_bytes_per_s: a link without bandwidth carries nothing; leave it out"
    if graph.flow_counts is not None and (graph.flow_counts < 0).any():
        yield f"flow_counts: {graph.flow_counts.min()}, expected 0 or more flows"
    for name in ("compute_rate_while_communicating", "communication_rate_while_computing"):
        if not 0.0 < (rate := getattr(graph, name)) <= 1.0:
            yield f"{name}: {rate}, expected a rate in (0, 1]"


def _value_faults(graph: ExecutionGraph) -> Iterator[str]:
    yield from _id_faults(graph, "kind", len(TaskKind), "task kinds")
    yield from _id_faults(graph, "stream_ids", len(graph.stream_class), "streams")
    yield from _id_faults(graph, "successors", graph.tasks, "tasks")
    yield from _id_faults(graph, "flow_links", len(graph.link_names), "links")
    for name in _NUMBERS:
        yield from _number_faults(name, getattr(graph, name))
    yield from _row_faults(graph)


def _id_faults(graph: ExecutionGraph, name: str, count: int, what: str) -> Iterator[str]:
    values = getattr(graph, name)
    if len(values) and not (values.min() >= 0 and values.max() < count):
        yield f"{name}: ids from {values.min()} to {values.max()}, but there are {count} {what}"


def _number_faults(name: str, values: Floats) -> Iterator[str]:
    # min and max carry a NaN through, so two passes find every bad value.
    if len(values) and not (values.min() >= 0.0 and values.max() < np.inf):
        place = int(np.flatnonzero(~((values >= 0.0) & (values < np.inf)))[0])
        yield f"{name}[{place}]: {values[place]}, expected a finite number >= 0"


def _row_faults(graph: ExecutionGraph) -> Iterator[str]:
    offsets, ids = graph.stream_offsets, graph.stream_ids
    rising = ids[1:] > ids[:-1]
    rising[offsets[(offsets > 0) & (offsets < len(ids))] - 1] = True  # between two tasks
    if not rising.all():
        task = int(np.searchsorted(offsets, np.flatnonzero(~rising)[0], side="right")) - 1
        yield f"task {task}: its streams must be ascending and all different"
    silent = (graph.kind == TaskKind.COMPUTE) | (graph.kind == TaskKind.HOST)
    if (silent & (graph.flow_offsets[1:] > graph.flow_offsets[:-1])).any():
        task = int(np.flatnonzero(silent & (np.diff(graph.flow_offsets) > 0))[0])
        yield f"task {task}: only collectives and transfers use links; make it a transfer"


def _is_sound(graph: ExecutionGraph) -> bool:
    """Return whether the per-task arrays have no fault."""

    def column(name: str, kind: type) -> NDArray[Any]:
        return np.require(getattr(graph, name), kind, ("C", "A", "W"))

    rows = [column(name, np.int64) for pair in _ROWS for name in pair]
    bits = [column(name, np.float64).view(np.int64) for name in _NUMBERS]
    kinds = column("kind", np.int8)
    counts = (len(graph.stream_class), graph.tasks, len(graph.link_names))
    return bool(_all_sound(kinds, _Rows(*rows), _Bits(*bits), _Counts(*counts)))


class _Rows(NamedTuple):
    stream_offsets: Integers
    stream_ids: Integers
    successor_offsets: Integers
    successors: Integers
    flow_offsets: Integers
    flow_links: Integers


class _Bits(NamedTuple):
    latency_s: Integers
    work_s: Integers
    alloc_bytes: Integers
    free_bytes: Integers
    flow_bytes_per_s: Integers


class _Counts(NamedTuple):
    streams: int
    tasks: int
    links: int


@kernel
def _all_sound(kind: NDArray[np.int8], rows: _Rows, bits: _Bits, counts: _Counts) -> bool:
    if not (
        _rises(rows.stream_offsets, len(rows.stream_ids))
        and _rises(rows.successor_offsets, len(rows.successors))
        and _rises(rows.flow_offsets, len(rows.flow_links))
    ):
        return False
    return (
        _are_ids(rows.stream_ids, counts.streams)
        and _are_ids(rows.successors, counts.tasks)
        and _are_ids(rows.flow_links, counts.links)
        and _are_finite(bits.latency_s)
        and _are_finite(bits.work_s)
        and _are_finite(bits.alloc_bytes)
        and _are_finite(bits.free_bytes)
        and _are_finite(bits.flow_bytes_per_s)
        and _rows_ascend(rows.stream_offsets, rows.stream_ids)
        and _use_links_rightly(kind, rows.flow_offsets)
    )


# No loop below leaves early: so the processor takes several values at a time.


@part
def _rises(offsets: Integers, values: int) -> bool:
    falls = 0
    for k in range(len(offsets) - 1):
        falls |= offsets[k + 1] < offsets[k]
    return falls == 0 and offsets[0] == 0 and offsets[len(offsets) - 1] == values


@part
def _are_ids(ids: Integers, count: int) -> bool:
    wrong = 0
    for k in range(len(ids)):
        wrong |= (ids[k] < 0) | (ids[k] >= count)
    return wrong == 0


@part
def _are_finite(bits: Integers) -> bool:
    """Return whether numbers, given as their bits, are finite and non-negative; -0 is 0."""
    wrong = 0
    for k in range(len(bits)):
        wrong |= ((bits[k] < 0) & (bits[k] != _MINUS_ZERO)) | (bits[k] >= _INFINITY)
    return wrong == 0


@part
def _use_links_rightly(kind: NDArray[np.int8], offsets: Integers) -> bool:
    """Return whether only communication uses links and all kinds are known."""
    wrong = 0
    for t in range(len(kind)):
        silent = (kind[t] == _COMPUTE) | (kind[t] == _HOST)
        wrong |= silent & (offsets[t + 1] > offsets[t])
        wrong |= (kind[t] < 0) | (kind[t] >= _KINDS)
    return wrong == 0


@part
def _rows_ascend(offsets: Integers, ids: Integers) -> bool:
    """Return whether ids ascend within each row."""
    falls = 0
    for k in range(1, len(ids)):
        falls += ids[k] <= ids[k - 1]
    for t in range(1, len(offsets) - 1):
        k = offsets[t]
        if k < offsets[t + 1] and k > 0:
            falls -= ids[k] <= ids[k - 1]
    return falls == 0
