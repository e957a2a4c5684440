"""Whether an execution graph can be played at all: shapes, ids and signs, checked vectorised."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from wattree.errors import SimulationError, UnknownNameError
from wattree.graph import ExecutionGraph, TaskKind
from wattree.sim.rules import SHARING_POLICIES

__all__ = ["check_graph", "sharing_code"]

_LARGEST_COUNT = 2**30 - 1  # the kernels number tasks twice (ends, begins of work) in 32 bits


def sharing_code(sharing: str) -> int:
    """Return the kernels' number for a sharing policy.

    Raises:
        UnknownNameError: There is no such policy.
    """
    if sharing not in SHARING_POLICIES:
        raise UnknownNameError(kind="sharing policy", name=sharing, known=SHARING_POLICIES)
    return SHARING_POLICIES.index(sharing)


def check_graph(graph: ExecutionGraph) -> None:
    """Refuse a graph whose arrays do not fit together or hold impossible values.

    Raises:
        SimulationError: Lists every fault, not only the first.
    """
    faults = list(_shape_faults(graph)) or list(_value_faults(graph))
    if faults:
        raise SimulationError("\n".join(["execution graph rejected:", *(f"  {f}" for f in faults)]))


def _shape_faults(graph: ExecutionGraph) -> Iterator[str]:
    tasks, streams = graph.tasks, len(graph.stream_class)
    classes, links = len(graph.class_ranks), len(graph.link_bandwidth_bytes_per_s)
    lengths = (
        (tasks, ("latency_s", "work_s", "overlaps", "alloc_bytes", "free_bytes", "name_ids")),
        (streams, ("stream_kind",)),
        (classes, ("class_names", "resident_bytes")),
        (links, ("link_names",)),
        (len(graph.flow_links), ("flow_bytes_per_s",)),
    )
    for expected, names in lengths:
        for name in names:
            if (found := len(getattr(graph, name))) != expected:
                yield f"{name}: {found} values, expected {expected}"
    for offsets, values in (
        ("stream_offsets", "stream_ids"),
        ("successor_offsets", "successors"),
        ("flow_offsets", "flow_links"),
    ):
        yield from _csr_faults(graph, offsets, values)


def _csr_faults(graph: ExecutionGraph, offsets_name: str, values_name: str) -> Iterator[str]:
    offsets, values = getattr(graph, offsets_name), len(getattr(graph, values_name))
    if len(offsets) != graph.tasks + 1:
        yield f"{offsets_name}: {len(offsets)} offsets, expected {graph.tasks + 1}"
    elif offsets[0] != 0 or offsets[-1] != values or (offsets[1:] < offsets[:-1]).any():
        yield f"{offsets_name}: must rise from 0 to {values}, the length of {values_name}"
    if values > _LARGEST_COUNT or graph.tasks > _LARGEST_COUNT:
        yield f"{values_name}: more than {_LARGEST_COUNT} values; split the graph"


def _value_faults(graph: ExecutionGraph) -> Iterator[str]:
    ids = (
        ("kind", len(TaskKind), "task kinds"),
        ("stream_ids", len(graph.stream_class), "streams"),
        ("successors", graph.tasks, "tasks"),
        ("flow_links", len(graph.link_names), "links"),
        ("stream_class", len(graph.class_names), "rank classes"),
    )
    for name, count, what in ids:
        values = getattr(graph, name)
        if len(values) and not (values.min() >= 0 and values.max() < count):
            yield f"{name}: ids from {values.min()} to {values.max()}, but there are {count} {what}"
    for name in ("latency_s", "work_s", "alloc_bytes", "free_bytes", "flow_bytes_per_s"):
        yield from _number_faults(name, getattr(graph, name))
    yield from _number_faults("resident_bytes", graph.resident_bytes)
    yield from _number_faults("link_bandwidth_bytes_per_s", graph.link_bandwidth_bytes_per_s)
    if (graph.link_bandwidth_bytes_per_s == 0.0).any():
        yield "link_bandwidth_bytes_per_s: a link without bandwidth carries nothing; leave it out"
    for name in ("compute_rate_while_communicating", "communication_rate_while_computing"):
        if not 0.0 < (rate := getattr(graph, name)) <= 1.0:
            yield f"{name}: {rate}, expected a rate in (0, 1]"
    yield from _row_faults(graph)


def _number_faults(name: str, values: NDArray[np.float64]) -> Iterator[str]:
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
