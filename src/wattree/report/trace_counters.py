"""Counters of a timeline: memory of each rank class, power, load of each link."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.graph import ExecutionGraph
from wattree.trace import Trace

#: Name → (time [s], power [W]) points; each value holds until the next point. A name of a rank
#: class puts the counter there, any other into a process of its own.
PowerCurves = Mapping[str, Sequence[tuple[float, float]]]

NANOSECONDS_PER_S = 1e9
#: The process that shows the links.
LINKS = "links"
#: Links that are shown at most, those that carry most: no one scrolls through more tracks.
MOST_LINKS = 256
#: Sums of loads that cancel leave this share of a link's bandwidth at most.
_ROUNDING = 1e-9


def processes(graph: ExecutionGraph, power: PowerCurves) -> list[str]:
    """Return the rank classes, power curves that belong to none of them, then the links if used."""
    others = [name for name in power if name not in graph.class_names]
    return [*graph.class_names, *others, *([LINKS] if len(graph.flow_links) else [])]


def nanoseconds(time_s: Floats) -> Integers:
    """Return times as whole nanoseconds."""
    return np.rint(time_s * NANOSECONDS_PER_S).astype(np.int64)


def memory(trace: Trace, classes: int) -> Iterator[str]:
    """Yield a counter event at every instant at which the memory of a shown class changes.

    Categories of which a class never holds anything are left out.
    """
    graph = trace.graph
    changes = _changes(trace)
    for index in range(classes):
        times, levels = _levels(changes, index, graph.static_by_category[index])
        held = levels.any(axis=0)  # a track that stays at nothing only takes room
        if not held.any():
            continue
        names = [json.dumps(graph.category_names[c]) for c in np.flatnonzero(held)]
        sizes = np.rint(levels[:, held]).astype(np.int64)
        rows = zip(times.tolist(), sizes.tolist(), strict=True)
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


@dataclass(frozen=True, slots=True)
class _Changes:
    """What tasks take and give back: instants [ns], bytes, category and rank class of each."""

    at_ns: Integers
    size: Floats
    category: Integers
    owner: Integers


def _changes(trace: Trace) -> _Changes:
    graph = trace.graph
    tasks, owners = _members(graph)
    at_ns = np.concatenate([nanoseconds(trace.start_s)[tasks], nanoseconds(trace.end_s)[tasks]])
    size = np.concatenate([graph.alloc_bytes[tasks], -graph.free_bytes[tasks]])
    category = np.tile(graph.memory_category[tasks].astype(np.int64), 2)
    some = np.flatnonzero(size)
    return _Changes(at_ns[some], size[some], category[some], np.tile(owners, 2)[some])


def memory_levels(trace: Trace, rank_class: int) -> tuple[Floats, Floats]:
    """Return the instants at which the memory of a rank class changes, and what it holds after.

    Returns:
        Instants, 0 first [s], `(N,)`; bytes by category, `(N, categories)`.
    """
    static = trace.graph.static_by_category[rank_class]
    times_ns, levels = _levels(_changes(trace), rank_class, static)
    return times_ns / NANOSECONDS_PER_S, levels


def _levels(changes: _Changes, rank_class: int, static: Floats) -> tuple[Integers, Floats]:
    """Return the instants of change, time 0 first, and the bytes held after each by category."""
    mine = changes.owner == rank_class
    times, which = np.unique(np.concatenate([[0], changes.at_ns[mine]]), return_inverse=True)
    held = np.zeros((len(times), len(static)))
    np.add.at(held, (which.reshape(-1)[1:], changes.category[mine]), changes.size[mine])
    return times, static + np.cumsum(held, axis=0)


def power_curves(graph: ExecutionGraph, power: PowerCurves) -> Iterator[str]:
    """Yield the points of the power curves."""
    names = processes(graph, power)
    for name, curve in power.items():
        pid = names.index(name) + 1
        for time_s, power_w in curve:
            time_ns = round(time_s * NANOSECONDS_PER_S)
            yield _counter(pid, "power [W]", time_ns, f'"power":{power_w:.6g}')


def link_load(trace: Trace, power: PowerCurves) -> Iterator[str]:
    """Yield the load of each link that is used, at every instant at which it changes. [B/s]

    A trace stores when a task runs, not its rate at each moment, so a task loads its links evenly
    while it runs: totals of links are exact, and a level is the mean over a task.
    """
    graph = trace.graph
    if not len(graph.flow_links):
        return
    task = np.repeat(np.arange(graph.tasks), np.diff(graph.flow_offsets))
    begin_ns = nanoseconds(np.minimum(trace.start_s + graph.latency_s, trace.end_s))[task]
    end_ns = nanoseconds(trace.end_s)[task]
    moved = graph.flow_bytes_per_s * graph.work_s[task]
    works = np.flatnonzero((end_ns > begin_ns) & (moved > 0))
    link, moved = graph.flow_links[works], moved[works]
    begin_ns, end_ns = begin_ns[works], end_ns[works]
    rate = moved / (end_ns - begin_ns) * NANOSECONDS_PER_S
    pid = len(processes(graph, power))
    for index in _busiest(link, moved, len(graph.link_names)):
        mine = link == index
        times, load = _loads(begin_ns[mine], end_ns[mine], rate[mine])
        load[np.abs(load) < _ROUNDING * graph.link_bandwidth_bytes_per_s[index]] = 0.0
        name = json.dumps(f"{graph.link_names[index]} [B/s]")[1:-1]
        for time, level in zip(times.tolist(), load.tolist(), strict=True):
            yield _counter(pid, name, time, f'"load":{level:.9g}')


def _busiest(link: Integers, moved: Floats, links: int) -> list[int]:
    """Return the links that are used, those that carry most if there are many; ascending."""
    carried = np.bincount(link, weights=moved, minlength=links)
    used = np.flatnonzero(carried)
    most = used[np.argsort(-carried[used], kind="stable")[:MOST_LINKS]]
    return sorted(most.tolist())


def _loads(begin_ns: Integers, end_ns: Integers, rate: Floats) -> tuple[Integers, Floats]:
    """Return the instants of change, time 0 first, and the load from each on."""
    at_ns = np.concatenate([[0], begin_ns, end_ns])
    times, which = np.unique(at_ns, return_inverse=True)
    change = np.zeros(len(times))
    np.add.at(change, which.reshape(-1), np.concatenate([[0.0], rate, -rate]))
    return times, np.cumsum(change)


def _counter(pid: int, name: str, time_ns: int, args: str) -> str:
    time = f"{time_ns // 1000}.{time_ns % 1000:03d}"
    return f'{{"ph":"C","pid":{pid},"ts":{time},"name":"{name}","args":{{{args}}}}}'
