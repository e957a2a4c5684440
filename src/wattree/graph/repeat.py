"""Several jobs in one graph, with repeated steps: the load on a shared fabric over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wattree.arrays import Flags, Integers
from wattree.graph.execution_graph import ExecutionGraph, Phase, StageLabel, TaskKind
from wattree.graph.operator_class import OperatorClass

#: Columns with one value for each task, and what a gate has there.
_GATE: dict[str, Any] = {
    "kind": TaskKind.HOST,
    "latency_s": 0.0,
    "work_s": 0.0,
    "overlaps": False,
    "alloc_bytes": 0.0,
    "free_bytes": 0.0,
    "phase": Phase.SYNCHRONIZATION,
    "stage": StageLabel.COMPUTING,
    "micro_batch": -1,
    "flop": 0.0,
    "memory_traffic_bytes": 0.0,
    "link_traffic_bytes": 0.0,
    "memory_category": 0,
}
_GATE_NAME = "step begins"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTasks:
    """One job of a graph of several: tasks and rank classes, each a range."""

    tasks: slice
    classes: slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Jobs with their steps one after another.

    Attributes:
        graph: To play. A task without streams, a gate, opens each step when the one before it has
            ended; that of a job's first step waits as long as the job is late.
        gates: Gate of each step, by job.
        tasks: Where each job's tasks begin in `graph`, by step.
        jobs: The jobs in the graph of one step of each.
    """

    graph: ExecutionGraph
    gates: tuple[Integers, ...]
    tasks: tuple[Integers, ...]
    jobs: tuple[JobTasks, ...]

    def late_by(self, delays_s: Sequence[float]) -> ExecutionGraph:
        """Return the graph in which each job's first step begins after its delay. [s]"""
        latency_s = self.graph.latency_s.copy()
        latency_s[[gates[0] for gates in self.gates]] = delays_s
        return replace(self.graph, latency_s=latency_s)

    def step(self, job: int, step: int) -> slice:
        """Return the tasks of one step of a job, gate left out."""
        first = int(self.tasks[job][step])
        tasks = self.jobs[job].tasks
        return slice(first, first + tasks.stop - tasks.start)


def tasks_of_jobs(graph: ExecutionGraph, classes: Sequence[int]) -> tuple[JobTasks, ...]:
    """Return the jobs of a graph in which their tasks and classes stand one job after another.

    Args:
        graph: Every task of it has a stream.
        classes: Rank classes of each job.
    """
    ends = np.cumsum([0, *classes])
    of_task = graph.stream_class[graph.stream_ids[graph.stream_offsets[:-1]]]
    job = np.searchsorted(ends, of_task, side="right") - 1
    first = np.searchsorted(job, np.arange(len(classes) + 1))
    return tuple(
        JobTasks(
            tasks=slice(int(first[j]), int(first[j + 1])),
            classes=slice(int(ends[j]), int(ends[j + 1])),
        )
        for j in range(len(classes))
    )


def repeated(graph: ExecutionGraph, jobs: Sequence[JobTasks], steps: Sequence[int]) -> Repeated:
    """Return the graph in which each job makes so many steps, one after another.

    Args:
        graph: One step of each job.
        jobs: From `tasks_of_jobs`.
        steps: Of each job, 1 or more.
    """
    blocks, gates, tasks = [], [], []
    filled = 0
    for job, count in zip(jobs, steps, strict=True):
        size = job.tasks.stop - job.tasks.start
        starts = filled + np.arange(count) * (size + 1)
        gates.append(starts)
        tasks.append(starts + 1)
        one = np.concatenate(([graph.tasks], np.arange(job.tasks.start, job.tasks.stop)))
        blocks.append(np.tile(one, count))
        filled += count * (size + 1)
    source = np.concatenate(blocks)  # of each task; a gate's lies behind the last one
    successor_offsets, successors = _successors(graph, jobs, gates, len(source))
    classes = graph.operator_class
    if classes is not None:
        classes = np.append(classes, np.int8(OperatorClass.HOST))[source]
    columns = {
        name: np.append(getattr(graph, name), np.array(value, getattr(graph, name).dtype))[source]
        for name, value in _GATE.items()
    }
    return Repeated(
        graph=replace(
            graph,
            **columns,
            **_on_streams(graph, source),
            successor_offsets=successor_offsets,
            successors=successors,
            name_ids=np.append(graph.name_ids, len(graph.names))[source],
            names=(*graph.names, _GATE_NAME),
            operator_class=classes,
        ),
        gates=tuple(gates),
        tasks=tuple(tasks),
        jobs=tuple(jobs),
    )


def part_of(graph: ExecutionGraph, job: JobTasks) -> ExecutionGraph:
    """Return one job's step as a graph of its own; links stay those of all.

    Args:
        graph: One step of each job.
        job: One of them, from `tasks_of_jobs`.
    """
    own = np.arange(job.tasks.start, job.tasks.stop)
    successor_offsets, successors = _rows(graph.successor_offsets, own)
    on_class = (graph.stream_class >= job.classes.start) & (graph.stream_class < job.classes.stop)
    first_stream = int(np.argmax(on_class))
    rows = _on_streams(graph, own)
    rows["stream_ids"] -= first_stream
    of_class = ("class_ranks", "static_bytes", "static_by_category")
    return replace(
        graph,
        **{name: getattr(graph, name)[own] for name in (*_GATE, "name_ids")},
        **{name: getattr(graph, name)[job.classes] for name in of_class},
        class_names=graph.class_names[job.classes],
        stream_class=graph.stream_class[on_class] - job.classes.start,
        stream_kind=graph.stream_kind[on_class],
        **rows,
        successor_offsets=successor_offsets,
        successors=graph.successors[successors] - job.tasks.start,
        operator_class=None if graph.operator_class is None else graph.operator_class[own],
    )


def with_links_apart(
    graph: ExecutionGraph, jobs: Sequence[JobTasks], chosen: Flags
) -> ExecutionGraph:
    """Return the graph in which every job has some links to itself.

    Args:
        graph: One step of each job.
        chosen: Which links, `(L,)`; each job behind the first gets its own copies of them.
    """
    count, extra = len(chosen), int(chosen.sum())
    copy = np.full(count, -1)
    copy[chosen] = np.arange(extra)
    flow_links = graph.flow_links.copy()
    for number, job in enumerate(jobs[1:]):
        flows = slice(*graph.flow_offsets[[job.tasks.start, job.tasks.stop]])
        links = graph.flow_links[flows]
        flow_links[flows] = np.where(chosen[links], count + number * extra + copy[links], links)
    bandwidth, copies = graph.link_bandwidth_bytes_per_s, len(jobs) - 1
    names = tuple(name for name, is_one in zip(graph.link_names, chosen, strict=True) if is_one)
    return replace(
        graph,
        flow_links=flow_links,
        link_bandwidth_bytes_per_s=np.concatenate([bandwidth, np.tile(bandwidth[chosen], copies)]),
        link_names=graph.link_names + names * copies,
    )


def _on_streams(graph: ExecutionGraph, source: Integers) -> dict[str, Any]:
    """Return the streams and flows of chosen tasks, as fields of a graph."""
    stream_offsets, streams = _rows(graph.stream_offsets, source)
    flow_offsets, flows = _rows(graph.flow_offsets, source)
    of_flows = ("flow_links", "flow_bytes_per_s", "flow_counts", "flow_largest_bytes_per_s")
    columns = {name: getattr(graph, name) for name in of_flows}
    return {
        "stream_offsets": stream_offsets,
        "stream_ids": graph.stream_ids[streams],
        "flow_offsets": flow_offsets,
        **{name: None if each is None else each[flows] for name, each in columns.items()},
    }


def _rows(offsets: Integers, source: Integers) -> tuple[Integers, Integers]:
    """Return offsets of chosen CSR rows, and where their values stand; one row more is empty."""
    starts, counts = offsets, np.append(np.diff(offsets), 0)[source]
    result = np.zeros(len(source) + 1, dtype=np.int64)
    np.cumsum(counts, out=result[1:])
    return result, np.arange(result[-1]) + np.repeat(starts[source] - result[:-1], counts)


def _successors(
    graph: ExecutionGraph, jobs: Sequence[JobTasks], gates: Sequence[Integers], count: int
) -> tuple[Integers, Integers]:
    """Return the edges of all steps: their own, and those from and to their gates.

    What waits for nothing waits for its step's gate, which waits for all that nothing waited for
    in the step before.
    """
    waits = np.zeros(graph.tasks, dtype=bool)
    waits[graph.successors] = True
    is_last = np.diff(graph.successor_offsets) == 0
    before, after = [], []
    for job, of_job in zip(jobs, gates, strict=True):
        own = np.arange(job.tasks.start, job.tasks.stop)
        offsets, values = _rows(graph.successor_offsets, own)
        first = own[~waits[own]] - job.tasks.start
        last = own[is_last[own]] - job.tasks.start
        begin = np.repeat(own - job.tasks.start, np.diff(offsets))
        end = graph.successors[values] - job.tasks.start
        base = of_job[:, None] + 1
        before += [(base + begin).ravel(), np.repeat(of_job, len(first))]
        after += [(base + end).ravel(), (base + first).ravel()]
        before.append((base[:-1] + last).ravel())
        after.append(np.repeat(of_job[1:], len(last)))
    rows, successors = np.concatenate(before), np.concatenate(after)
    order = np.argsort(rows, kind="stable")
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
    return offsets, successors[order]
