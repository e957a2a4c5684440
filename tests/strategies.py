"""Hypothesis strategies that several test modules draw from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from wattree.graph import ExecutionGraph, TaskKind

__all__ = ["TaskSpec", "execution_graphs", "flow", "graph_of"]

COMMUNICATION = (TaskKind.COLLECTIVE, TaskKind.TRANSFER)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """One task as a test writes it. `flow` maps link to bandwidth at rate 1. [B/s]

    `counts`, if given, says for each link how many flows the task stands for there.
    """

    kind: TaskKind = TaskKind.COMPUTE
    streams: tuple[int, ...] = (0,)
    after: tuple[int, ...] = ()
    latency_s: float = 0.0
    work_s: float = 0.0
    flow: tuple[tuple[int, float], ...] = ()
    counts: tuple[int, ...] = ()
    overlaps: bool = True
    alloc_bytes: float = 0.0
    free_bytes: float = 0.0


def flow(stream: int, work_s: float, *widths: tuple[int, float], **more: object) -> TaskSpec:
    """Return a collective on one stream that uses links."""
    return TaskSpec(
        kind=TaskKind.COLLECTIVE,
        streams=(stream,),
        work_s=work_s,
        flow=widths,
        **more,  # type: ignore[arg-type]
    )


def graph_of(
    tasks: Sequence[TaskSpec],
    *,
    stream_class: Sequence[int] = (0,),
    link_bandwidth_bytes_per_s: Sequence[float] = (),
    static_bytes: Sequence[float] | None = None,
    compute_rate: float = 1.0,
    communication_rate: float = 1.0,
) -> ExecutionGraph:
    """Return the execution graph of hand-written tasks; what does not matter to play is zero."""
    count, classes = len(tasks), max(stream_class, default=-1) + 1
    followers: list[list[int]] = [[] for _ in tasks]
    for task, spec in enumerate(tasks):
        for predecessor in spec.after:
            followers[predecessor].append(task)
    stream_offsets, stream_ids = _csr([spec.streams for spec in tasks])
    successor_offsets, successors = _csr(followers)
    flow_offsets, flow_links = _csr([[link for link, _ in spec.flow] for spec in tasks])
    return ExecutionGraph(
        kind=np.array([spec.kind for spec in tasks], dtype=np.int8),
        latency_s=_floats([spec.latency_s for spec in tasks]),
        work_s=_floats([spec.work_s for spec in tasks]),
        stream_offsets=stream_offsets,
        stream_ids=stream_ids,
        successor_offsets=successor_offsets,
        successors=successors,
        flow_offsets=flow_offsets,
        flow_links=flow_links,
        flow_bytes_per_s=_floats([width for spec in tasks for _, width in spec.flow]),
        overlaps=np.array([spec.overlaps for spec in tasks], dtype=np.bool_),
        alloc_bytes=_floats([spec.alloc_bytes for spec in tasks]),
        free_bytes=_floats([spec.free_bytes for spec in tasks]),
        stream_class=np.array(stream_class, dtype=np.int64),
        stream_kind=np.zeros(len(stream_class), np.int8),
        class_ranks=np.ones(classes, np.int64),
        class_names=tuple(f"rank {c}" for c in range(classes)),
        static_bytes=_floats(static_bytes or [0.0] * classes),
        link_bandwidth_bytes_per_s=_floats(link_bandwidth_bytes_per_s),
        link_names=tuple(f"link {k}" for k in range(len(link_bandwidth_bytes_per_s))),
        compute_rate_while_communicating=compute_rate,
        communication_rate_while_computing=communication_rate,
        name_ids=np.arange(count),
        names=tuple(f"t{task}" for task in range(count)),
        phase=np.zeros(count, np.int8),
        stage=np.zeros(count, np.int8),
        micro_batch=np.full(count, -1),
        flop=np.zeros(count),
        memory_traffic_bytes=np.zeros(count),
        link_traffic_bytes=np.zeros(count),
        memory_category=np.zeros(count, np.int8),
        category_names=("activations",),
        static_by_category=np.zeros((classes, 1)),
        flow_counts=_counts(tasks),
    )


def _counts(tasks: Sequence[TaskSpec]) -> NDArray[np.int64] | None:
    """Return the counts of all flows, one each where a task gives none; None if no task does."""
    if not any(spec.counts for spec in tasks):
        return None
    counts = [spec.counts or (1,) * len(spec.flow) for spec in tasks]
    return np.array([count for row in counts for count in row], dtype=np.int64)


def _floats(values: Sequence[float]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


def _csr(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows], dtype=np.int64)))
    values = np.array([value for row in rows for value in row], dtype=np.int64)
    return offsets.astype(np.int64), values


#: Small whole numbers make events meet at one instant; others make sums round.
durations_s = st.one_of(
    st.integers(0, 3).map(float), st.floats(1e-6, 10.0, allow_subnormal=False), st.just(0.1)
)
widths_bytes_per_s = st.one_of(
    st.integers(0, 12).map(float), st.floats(0.01, 20.0, allow_subnormal=False)
)
sizes_bytes = st.one_of(st.integers(0, 3).map(float), st.floats(0.0, 1e3, allow_subnormal=False))


@st.composite
def execution_graphs(draw: st.DrawFn, max_tasks: int = 14) -> ExecutionGraph:
    """Return a random small graph whose edges rise with task id, so that it has no deadlock."""
    stream_class = draw(st.lists(st.integers(0, 2), min_size=1, max_size=6))
    bandwidths = draw(
        st.lists(st.one_of(st.just(10.0), st.floats(0.5, 50.0)), min_size=1, max_size=4)
    )
    tasks = [
        draw(_tasks(task, len(stream_class), len(bandwidths)))
        for task in range(draw(st.integers(0, max_tasks)))
    ]
    rates = st.sampled_from((0.25, 0.7, 0.9, 1.0))
    return graph_of(
        tasks,
        stream_class=stream_class,
        link_bandwidth_bytes_per_s=bandwidths,
        static_bytes=[draw(sizes_bytes) for _ in range(max(stream_class) + 1)],
        compute_rate=draw(rates),
        communication_rate=draw(rates),
    )


@st.composite
def _tasks(draw: st.DrawFn, task: int, streams: int, links: int) -> TaskSpec:
    kind = draw(st.sampled_from((TaskKind.COMPUTE, *COMMUNICATION, TaskKind.HOST)))
    flow: dict[int, float] = {}
    if kind in COMMUNICATION:
        flow = draw(st.dictionaries(st.integers(0, links - 1), widths_bytes_per_s, max_size=3))
    earlier = st.sets(st.integers(0, task - 1), max_size=3) if task else st.just(frozenset())
    return TaskSpec(
        kind=kind,
        streams=tuple(sorted(draw(st.sets(st.integers(0, streams - 1), max_size=3)))),
        after=tuple(sorted(draw(earlier))),
        latency_s=draw(durations_s),
        work_s=draw(durations_s),
        flow=tuple(flow.items()),
        counts=tuple(draw(st.integers(0, 3)) for _ in flow) if draw(st.booleans()) else (),
        overlaps=draw(st.booleans()),
        alloc_bytes=draw(sizes_bytes),
        free_bytes=draw(sizes_bytes),
    )
