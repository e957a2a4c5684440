"""Break down the step time of one rank class, with each instant under one heading."""

from __future__ import annotations

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.graph import Phase, TaskKind
from wattree.trace import TimeParts, Trace


def membership_class(trace: Trace) -> tuple[Integers, Integers]:
    """Return (task, rank class) of every membership of a task in a stream."""
    graph = trace.graph
    return _members(trace), graph.stream_class[graph.stream_ids]


def _members(trace: Trace) -> Integers:
    """Return the task of every membership of a task in a stream."""
    graph = trace.graph
    counts, task = np.diff(graph.stream_offsets), np.arange(graph.tasks)
    return task if (counts == 1).all() else np.repeat(task, counts)


def tasks_of(trace: Trace, rank_class: int) -> Integers:
    """Return the tasks that a rank class takes part in, ascending."""
    graph = trace.graph
    mine = (graph.stream_class == rank_class)[graph.stream_ids]
    return _distinct(_members(trace)[mine])


def _distinct(row: Integers) -> Integers:
    """Return a row without repeats: a task that is on several streams comes as often in turn."""
    return np.asarray(row[np.diff(row, prepend=-1) != 0])


def tasks_by_class(trace: Trace, classes: int) -> list[Integers]:
    """Return for each of the first rank classes the tasks it takes part in, ascending."""
    task, owner = membership_class(trace)
    if classes < len(trace.graph.class_ranks):
        chosen = owner < classes
        task, owner = task[chosen], owner[chosen]
    small = np.min_scalar_type(classes)  # numpy sorts 16 bits in a few passes
    order = np.argsort(owner.astype(small), kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=classes))
    rows = np.split(task[order], ends[:-1])
    return [_distinct(row) for row in rows]


def starved_span(trace: Trace) -> Floats:
    """Return when the whole job waits for input of later steps: rows (start, end), or none. [s]

    From the end of everything else, on any rank, until the last of them is there.
    """
    graph = trace.graph
    ahead = graph.phase == Phase.PREFETCH
    if not ahead.any():
        return np.zeros((0, 2))
    there_s = float(trace.end_s[ahead].max())
    done_s = float(trace.end_s[~ahead].max(initial=0.0))
    return np.array([(done_s, there_s)]) if done_s < there_s else np.zeros((0, 2))


def time_parts(
    trace: Trace,
    rank_class: int,
    mine: Integers | None = None,
    *,
    starved: Floats | None = None,
) -> TimeParts:
    """Return the step time of `rank_class` by heading; the parts add up to the makespan. [s]

    Time with a compute task running is compute, recomputation or optimizer by its phase. Of the
    rest, time with communication in flight on this class is exposed communication, then time
    with input work that computation waits for, and time in which the whole job waits for
    materials of later steps, is exposed materials, then time with other host work is `other`;
    what is left is the bubble. Who asks for many classes gives each one's tasks, `mine`, from
    `tasks_by_class`, and `starved`, from `starved_span`.
    """
    graph = trace.graph
    if mine is None:
        mine = tasks_of(trace, rank_class)
    mine = mine[graph.phase[mine] != Phase.PREFETCH]
    kind, phase = graph.kind[mine], graph.phase[mine]
    computing = kind == TaskKind.COMPUTE
    host = kind == TaskKind.HOST
    materials = phase == Phase.MATERIALS

    def spans(chosen: Flags) -> Floats:
        return busy_spans(trace, mine[chosen])

    lasts_s = executed_s(trace, mine)
    recomputing = computing & (phase == Phase.RECOMPUTATION)
    optimizing = computing & (phase == Phase.OPTIMIZER)
    layers = [
        spans(computing),
        spans(~computing & ~host & ~materials),
        spans(~computing & materials),
        starved_span(trace) if starved is None else starved,
        spans(host & ~materials),
    ]
    reached = covered_s(layers)
    if trace.repeats is not None:
        again = covered_s([trace.repeats.in_turn(layer, rank_class) for layer in layers])
        reached += trace.repeats.times * again
    exposed = np.diff([0.0, *reached])
    makespan = trace.makespan_s
    parts = {
        "recomputation": float(lasts_s[recomputing].sum()),
        "optimizer": float(lasts_s[optimizing].sum()),
        "exposed_communication": float(exposed[1]),
        "exposed_materials": float(exposed[2] + exposed[3]),
        "other": float(exposed[4]),
        "bubble": max(makespan - float(reached[-1]), 0.0),
    }
    # What is left is compute; so the parts add up exactly, rounding of interval sums included.
    return TimeParts(compute=makespan - sum(parts.values()), **parts)


def executed_s(trace: Trace, tasks: Integers) -> Floats:
    """Return how long tasks run, as often as they are executed. [s]"""
    lasts_s = trace.end_s[tasks] - trace.start_s[tasks]
    if trace.repeats is None:
        return np.asarray(lasts_s)
    return np.asarray(lasts_s * trace.repeats.counts(trace.graph.tasks)[tasks])


def busy_spans(trace: Trace, tasks: Integers) -> Floats:
    """Return when any of the tasks runs, as disjoint, sorted rows (start, end). [s]"""
    return _merged(trace.start_s[tasks], trace.end_s[tasks])


def covered_s(layers: list[Floats]) -> Floats:
    """Return the time covered by the first layer, the first two, and so on. [s]"""
    totals = []
    union = np.zeros((0, 2))
    for layer in layers:
        both = np.concatenate([union, layer])
        union = _merged(both[:, 0], both[:, 1])
        totals.append(float((union[:, 1] - union[:, 0]).sum()))
    return np.array(totals)


def _merged(start: Floats, end: Floats) -> Floats:
    """Return the union of intervals as disjoint, sorted rows (start, end)."""
    if not len(start):
        return np.zeros((0, 2))
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    fresh = np.concatenate(([True], start[1:] > end[:-1]))
    first = np.flatnonzero(fresh)
    last = np.concatenate((first[1:] - 1, [len(start) - 1]))
    return np.stack([start[first], end[last]], axis=1)
