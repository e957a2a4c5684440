"""Traces for Perfetto and chrome://tracing, in the Trace Event Format.

One process per rank class, one thread per stream, one complete event per task and stream, counters
for memory and power. Times are whole nanoseconds, so that neighbours on a stream never overlap.

References:
    [1] Google, "Trace Event Format" (ph X: complete, C: counter, M: metadata; ts and dur in
        microseconds), document of 2016, as read by catapult and Perfetto.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattree.files import write_atomic
from wattree.graph import ExecutionGraph, Phase, StageLabel, StreamKind, TaskKind
from wattree.trace import Trace

__all__ = ["PowerCurves", "chrome_trace", "write_trace"]

Integers = NDArray[np.int64]
#: Name → (time [s], power [W]) points; each value holds until the next point. A name of a rank
#: class puts the counter there, any other into a process of its own.
PowerCurves = Mapping[str, Sequence[tuple[float, float]]]

NANOSECONDS_PER_S = 1e9
_KIND_ORDER = {
    StreamKind.COMPUTE: 0,
    StreamKind.COMMUNICATION: 1,
    StreamKind.COPY: 2,
    StreamKind.HOST: 3,
}


def chrome_trace(trace: Trace, *, power: PowerCurves | None = None) -> dict[str, Any]:
    """Return the trace as an object of the Trace Event Format [1]."""
    loaded: dict[str, Any] = json.loads(_text(trace, power))
    return loaded


def write_trace(path: Path, trace: Trace, *, power: PowerCurves | None = None) -> None:
    """Write the trace to a file that Perfetto opens, in one piece.

    Args:
        path: Where to; replaced if it exists.
        trace: What happened.
        power: Power over time, by name.

    Raises:
        OutputError: The file cannot be written.
    """
    write_atomic(path, _text(trace, power))


def _text(trace: Trace, power: PowerCurves | None) -> str:
    # Lines are written by hand: json.dumps over 10^6 dictionaries takes ten times as long.
    lines = chain(
        _metadata(trace.graph, power or {}),
        _tasks(trace),
        _memory(trace),
        _power(trace.graph, power or {}),
    )
    return '{"displayTimeUnit":"ms","traceEvents":[\n' + ",\n".join(lines) + "\n]}\n"


def _metadata(graph: ExecutionGraph, power: PowerCurves) -> Iterator[str]:
    for index, name in enumerate(_processes(graph, power)):
        yield _meta("process_name", {"name": name}, pid=index + 1)
        yield _meta("process_sort_index", {"sort_index": index}, pid=index + 1)
    for stream, title in _stream_titles(graph).items():
        place = {"pid": int(graph.stream_class[stream]) + 1, "tid": stream + 1}
        order = _KIND_ORDER[StreamKind(int(graph.stream_kind[stream]))] * len(graph.stream_kind)
        yield _meta("thread_name", {"name": title}, **place)
        yield _meta("thread_sort_index", {"sort_index": order + stream}, **place)


def _processes(graph: ExecutionGraph, power: PowerCurves) -> list[str]:
    """Return the rank classes, then the power curves that belong to none of them."""
    return [*graph.class_names, *(name for name in power if name not in graph.class_names)]


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


def _tasks(trace: Trace) -> Iterator[str]:
    graph = trace.graph
    start_ns, end_ns = _nanoseconds(trace.start_s), _nanoseconds(trace.end_s)
    heads, tails = _heads(graph), _tails(graph)
    task_of_row = np.repeat(np.arange(graph.tasks), np.diff(graph.stream_offsets))
    order = np.lexsort((graph.stream_ids, task_of_row, start_ns[task_of_row]))
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


def _memory(trace: Trace) -> Iterator[str]:
    """Yield a counter event per rank class at every instant at which its memory changes."""
    graph = trace.graph
    tasks, classes = _members(graph)
    at_ns = np.concatenate([_nanoseconds(trace.start_s)[tasks], _nanoseconds(trace.end_s)[tasks]])
    change = np.concatenate([graph.alloc_bytes[tasks], -graph.free_bytes[tasks]])
    category = np.tile(graph.memory_category[tasks].astype(np.int64), 2)
    owner = np.tile(classes, 2)
    changes = np.flatnonzero(change)
    at_ns, change, category, owner = (array[changes] for array in (at_ns, change, category, owner))
    names = [json.dumps(name) for name in graph.category_names]
    for index in range(len(graph.class_names)):
        mine = owner == index
        times, levels = _levels(
            at_ns[mine], category[mine], change[mine], graph.resident_by_category[index]
        )
        rows = zip(times.tolist(), np.rint(levels).astype(np.int64).tolist(), strict=True)
        for time, level in rows:
            args = ",".join(f"{name}:{size}" for name, size in zip(names, level, strict=True))
            yield _counter(index + 1, "memory [B]", time, args)


def _members(graph: ExecutionGraph) -> tuple[Integers, Integers]:
    """Return (task, rank class) pairs, each once, of all tasks that change memory."""
    tasks = np.repeat(np.arange(graph.tasks), np.diff(graph.stream_offsets))
    classes = graph.stream_class[graph.stream_ids]
    touches = ((graph.alloc_bytes != 0) | (graph.free_bytes != 0))[tasks]
    pairs = np.unique(np.stack([tasks[touches], classes[touches]]), axis=1)
    return pairs[0], pairs[1]


def _levels(
    at_ns: Integers,
    category: Integers,
    change: NDArray[np.float64],
    resident: NDArray[np.float64],
) -> tuple[Integers, NDArray[np.float64]]:
    """Return the instants of change, time 0 first, and the bytes held after each by category."""
    times, which = np.unique(np.concatenate([[0], at_ns]), return_inverse=True)
    changes = np.zeros((len(times), len(resident)))
    np.add.at(changes, (which.reshape(-1)[1:], category), change)
    return times, resident + np.cumsum(changes, axis=0)


def _power(graph: ExecutionGraph, power: PowerCurves) -> Iterator[str]:
    names = _processes(graph, power)
    for name, curve in power.items():
        pid = names.index(name) + 1
        for time_s, power_w in curve:
            time_ns = round(time_s * NANOSECONDS_PER_S)
            yield _counter(pid, "power [W]", time_ns, f'"power":{power_w:.6g}')


def _counter(pid: int, name: str, time_ns: int, args: str) -> str:
    time = f"{time_ns // 1000}.{time_ns % 1000:03d}"
    return f'{{"ph":"C","pid":{pid},"ts":{time},"name":"{name}","args":{{{args}}}}}'


def _nanoseconds(time_s: NDArray[np.float64]) -> Integers:
    return np.rint(time_s * NANOSECONDS_PER_S).astype(np.int64)
