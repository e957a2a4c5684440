"""Traces for Perfetto and chrome://tracing, in the Trace Event Format.

One process per rank class, one thread per stream, one complete event per task and stream, arrows
from what a task waited for, counters for memory, power and the load of links (`trace_counters`).
Times are whole nanoseconds, so that neighbours on a stream never overlap.

References:
    [1] Google, "Trace Event Format" (ph X: complete, C: counter, M: metadata, s/t/f: flow; ts and
        dur in microseconds), document of 2016, as read by catapult and Perfetto.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Integers
from wattree.files import write_atomic
from wattree.graph import ExecutionGraph, Phase, StageLabel, StreamKind, TaskKind
from wattree.report.trace_counters import (
    PowerCurves,
    link_load,
    memory,
    nanoseconds,
    power_curves,
    processes,
)
from wattree.trace import Trace

#: Arrows that a file holds at most; of more only those that a task really waited for, in time.
MOST_ARROWS = 100_000

#: Slices that a file holds at most: beyond some 10^6 the browser runs out of memory.
MOST_SLICES = 1_000_000
_KIND_ORDER = {
    StreamKind.COMPUTE: 0,
    StreamKind.COMMUNICATION: 1,
    StreamKind.COPY: 2,
    StreamKind.HOST: 3,
    StreamKind.STORAGE: 4,
}


def chrome_trace(trace: Trace, *, power: PowerCurves | None = None) -> dict[str, Any]:
    """Return the trace as an object of the Trace Event Format [1]."""
    loaded: dict[str, Any] = json.loads(_text(trace, power))
    return loaded


def write_trace(path: Path, trace: Trace, *, power: PowerCurves | None = None) -> None:
    """Write the trace to a file that Perfetto opens, in one piece.

    Args:
        path: Where to; replaced if it exists. Compressed if the name ends in `.gz`, which Perfetto
            opens as well.

    Raises:
        OutputError: The file cannot be written.
    """
    text = _text(trace, power)
    if path.suffix.lower() == ".gz":
        # Without the time of writing, so that the same trace is the same file.
        write_atomic(path, gzip.compress(text.encode(), compresslevel=6, mtime=0))
    else:
        write_atomic(path, text)


def _text(trace: Trace, power: PowerCurves | None) -> str:
    # Lines are written by hand: json.dumps over 10^6 dictionaries takes ten times as long.
    power = power or {}
    classes = shown_classes(trace.graph)
    lines = chain(
        _metadata(trace.graph, power, classes),
        _tasks(trace, classes),
        arrows(trace, classes),
        memory(trace, classes),
        power_curves(trace.graph, power),
        link_load(trace, power),
    )
    hidden = len(trace.graph.class_names) - classes
    head = '{"displayTimeUnit":"ms",'
    if hidden:
        head += '"otherData":' + json.dumps(
            {"left out": f"the last {hidden} rank classes: more than {MOST_SLICES} slices"}
        )
        head += ","
    return head + '"traceEvents":[\n' + ",\n".join(lines) + "\n]}\n"


def shown_classes(graph: ExecutionGraph) -> int:
    """Return how many rank classes, from the first, a file has room for; at least one."""
    slices = np.bincount(graph.stream_class[graph.stream_ids], minlength=len(graph.class_names))
    return max(int(np.searchsorted(np.cumsum(slices), MOST_SLICES, side="right")), 1)


def _metadata(graph: ExecutionGraph, power: PowerCurves, classes: int) -> Iterator[str]:
    for index, name in enumerate(processes(graph, power)):
        if classes <= index < len(graph.class_names):
            continue
        yield _meta("process_name", {"name": name}, pid=index + 1)
        yield _meta("process_sort_index", {"sort_index": index}, pid=index + 1)
    for stream, title in _stream_titles(graph).items():
        if graph.stream_class[stream] >= classes:
            continue
        place = {"pid": int(graph.stream_class[stream]) + 1, "tid": stream + 1}
        order = _KIND_ORDER[StreamKind(int(graph.stream_kind[stream]))] * len(graph.stream_kind)
        yield _meta("thread_name", {"name": title}, **place)
        yield _meta("thread_sort_index", {"sort_index": order + stream}, **place)


def _meta(name: str, args: Mapping[str, object], **place: int) -> str:
    return json.dumps({"ph": "M", "name": name, **place, "args": args})


def _stream_titles(graph: ExecutionGraph) -> dict[int, str]:
    """Name each stream that is used: its kind, and what it carries if that is one thing only."""
    names = np.repeat(graph.name_ids, np.diff(graph.stream_offsets))
    pairs = np.unique(np.stack([graph.stream_ids, names]), axis=1).T.tolist()
    carried: dict[int, list[str]] = {}
    for stream, name in pairs:
        carried.setdefault(stream, []).append(graph.names[name])
    titles = {}
    for stream, tasks in carried.items():
        kind = StreamKind(int(graph.stream_kind[stream]))
        is_general = kind is StreamKind.COMPUTE or len(tasks) > 1
        titles[stream] = kind.name.lower() if is_general else f"{kind.name.lower()}: {tasks[0]}"
    return titles


def _tasks(trace: Trace, classes: int) -> Iterator[str]:
    graph = trace.graph
    start_ns, end_ns = nanoseconds(trace.start_s), nanoseconds(trace.end_s)
    heads, tails = _heads(graph), _tails(graph)
    task_of_row = np.repeat(np.arange(graph.tasks), np.diff(graph.stream_offsets))
    order = np.lexsort((graph.stream_ids, task_of_row, start_ns[task_of_row]))
    order = order[graph.stream_class[graph.stream_ids[order]] < classes]
    tasks, streams = task_of_row[order], graph.stream_ids[order]
    rows = zip(
        tasks.tolist(),
        (graph.stream_class[streams] + 1).tolist(),
        (streams + 1).tolist(),
        start_ns[tasks].tolist(),
        (end_ns - start_ns)[tasks].tolist(),
        strict=True,
    )
    for task, pid, tid, start, duration in rows:
        yield (
            f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{start // 1000}.{start % 1000:03d},'
            f'"dur":{duration // 1000}.{duration % 1000:03d},{heads[task]}{tails[task]}'
        )


def _heads(graph: ExecutionGraph) -> list[str]:
    """Return name and category of each task; they repeat, so each text is made once."""
    keys = np.stack([graph.name_ids, graph.kind.astype(np.int64), graph.stage.astype(np.int64)])
    unique, which = np.unique(keys, axis=1, return_inverse=True)
    texts = [
        f'"name":{json.dumps(graph.names[name])},'
        f'"cat":"{TaskKind(kind).name.lower()},{StageLabel(stage).name.lower()}",'
        for name, kind, stage in unique.T.tolist()
    ]
    return [texts[index] for index in which.reshape(-1).tolist()]


def _tails(graph: ExecutionGraph) -> list[str]:
    """Return the arguments of each task, zeros left out."""
    phases = {int(phase): phase.name.lower() for phase in Phase}
    columns = zip(
        graph.phase.tolist(),
        graph.micro_batch.tolist(),
        graph.flop.tolist(),
        graph.memory_traffic_bytes.tolist(),
        graph.link_traffic_bytes.tolist(),
        graph.alloc_bytes.tolist(),
        graph.free_bytes.tolist(),
        strict=True,
    )
    names = ("flop", "memory_traffic_bytes", "link_traffic_bytes", "alloc_bytes", "free_bytes")
    tails = []
    for phase, micro_batch, *amounts in columns:
        text = f'"args":{{"phase":"{phases[phase]}"'
        if micro_batch >= 0:
            text += f',"micro_batch":{micro_batch}'
        for name, amount in zip(names, amounts, strict=True):
            if amount:
                text += f',"{name}":{amount:.0f}'
        tails.append(text + "}}")
    return tails


def arrows(trace: Trace, classes: int) -> Iterator[str]:
    """Yield the arrows among the first `classes` rank classes.

    An arrow leaves in the last nanosecond of a slice and arrives at the start of another, because a
    viewer binds an arrow to the slice that is open at its time [1]. Slices of no length have none.
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
