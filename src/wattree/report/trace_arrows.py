"""Arrows of a timeline: from what a task waited for to the task, and along each collective.

An arrow leaves in the last nanosecond of a slice and arrives at the start of another, because a
viewer binds an arrow to the slice that is open at its time [1]. Slices of no length have none.

References:
    [1] Google, "Trace Event Format", section on flow events, 2016.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

from wattree.graph import ExecutionGraph, TaskKind
from wattree.report.trace_counters import nanoseconds
from wattree.trace import Trace

Integers = NDArray[np.int64]

#: Arrows that a file holds at most; of more only those that a task really waited for, in time.
MOST_ARROWS = 100_000


def arrows(trace: Trace, classes: int) -> Iterator[str]:
    """Yield the arrows among the first `classes` rank classes.

    Args:
        trace: What happened.
        classes: Rank classes that are shown.
    """
    graph = trace.graph
    start_ns, end_ns = nanoseconds(trace.start_s), nanoseconds(trace.end_s)
    lasts = end_ns > start_ns
    numbers = count(1)
    for before, after in _chosen(trace, lasts):
        source, target = _ends(graph, before, after, classes)
        if source < 0 or source == target:
            continue
        crosses = graph.stream_class[source] != graph.stream_class[target]
        is_message = crosses and graph.kind[before] == TaskKind.TRANSFER
        name = "message" if is_message else "waits"
        number = next(numbers)
        yield _event("s", number, name, _place(graph, source), int(end_ns[before]) - 1)
        yield _event("f", number, name, _place(graph, target), int(start_ns[after]))
    for task in _shared_tasks(graph, lasts).tolist():
        streams = _shown_streams(graph, task, classes)
        if len(streams) < 2:
            continue
        number, time_ns = next(numbers), int(start_ns[task])
        marks = ["s", *["t"] * (len(streams) - 2), "f"]
        for mark, stream in zip(marks, streams, strict=True):
            yield _event(mark, number, "collective", _place(graph, stream), time_ns)


def _chosen(trace: Trace, lasts: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the dependencies between different streams, of many those that held a task back."""
    graph = trace.graph
    before = np.repeat(np.arange(graph.tasks), np.diff(graph.successor_offsets))
    after = graph.successors
    seated = np.diff(graph.stream_offsets) > 0
    drawn = lasts[before] & lasts[after] & seated[before] & seated[after]
    before, after = before[drawn], after[drawn]
    first = graph.stream_ids[graph.stream_offsets[:-1].clip(max=max(len(graph.stream_ids) - 1, 0))]
    apart = first[before] != first[after]
    before, after = before[apart], after[apart]
    if len(before) > MOST_ARROWS:
        held = trace.start_s[after] == trace.end_s[before]
        before, after = before[held], after[held]
    order = np.lexsort((after, before, trace.start_s[after]))[:MOST_ARROWS]
    yield from zip(before[order].tolist(), after[order].tolist(), strict=True)


def _shared_tasks(graph: ExecutionGraph, lasts: NDArray[np.bool_]) -> Integers:
    """Return the tasks that show on several streams."""
    return np.flatnonzero((np.diff(graph.stream_offsets) > 1) & lasts)[:MOST_ARROWS]


def _shown_streams(graph: ExecutionGraph, task: int, classes: int) -> list[int]:
    streams = graph.stream_ids[graph.stream_offsets[task] : graph.stream_offsets[task + 1]]
    return [int(stream) for stream in streams if graph.stream_class[stream] < classes]


def _ends(graph: ExecutionGraph, before: int, after: int, classes: int) -> tuple[int, int]:
    """Return the streams that an arrow joins, on one rank class if both tasks are there; or -1."""
    sources = _shown_streams(graph, before, classes)
    targets = _shown_streams(graph, after, classes)
    if not sources or not targets or set(sources) & set(targets):
        return -1, -1
    owner = {int(graph.stream_class[stream]): stream for stream in reversed(targets)}
    for source in sources:
        if (target := owner.get(int(graph.stream_class[source]))) is not None:
            return source, target
    return sources[0], targets[0]


def _place(graph: ExecutionGraph, stream: int) -> str:
    return f'"pid":{int(graph.stream_class[stream]) + 1},"tid":{stream + 1}'


def _event(mark: str, number: int, name: str, place: str, time_ns: int) -> str:
    binds = ',"bp":"e"' if mark == "f" else ""
    return (
        f'{{"ph":"{mark}","id":{number},{place},'
        f'"ts":{time_ns // 1000}.{time_ns % 1000:03d},"name":"{name}","cat":"flow"{binds}}}'
    )
