"""Tasks one by one → the arrays of an execution graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Floats, Integers
from wattree.graph.execution_graph import ExecutionGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task; fields as those of `ExecutionGraph`. `flows` pairs links with B/s at rate 1."""

    name: str
    kind: int
    latency_s: float = 0.0
    work_s: float
    streams: tuple[int, ...]
    flows: tuple[tuple[int, float], ...] = ()
    overlaps: bool = False
    phase: int = 0
    stage: int = 0
    micro_batch: int = -1
    category: int = 0
    alloc_bytes: float = 0.0
    free_bytes: float = 0.0
    flop: float = 0.0
    memory_traffic_bytes: float = 0.0
    link_traffic_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """All of a graph, ready to be laid out.

    Attributes:
        tasks: In the order in which streams take them.
        before: Tasks that end before each, by place in `tasks`.
        stream_kinds, stream_ranks: `StreamKind` and rank of each stream.
        rank_names, link_names: For people.
        link_bytes_per_s: Bandwidth of each link. [B/s]
        categories: Memory categories.
        static_bytes, static_by_category: By rank, and by rank and category. [B]
    """

    tasks: Sequence[Task]
    before: Sequence[Sequence[int]]
    stream_kinds: Sequence[int]
    stream_ranks: Sequence[int]
    rank_names: Sequence[str]
    link_names: Sequence[str] = ()
    link_bytes_per_s: Sequence[float] = ()
    compute_rate: float = 1.0
    communication_rate: float = 1.0
    categories: Sequence[str]
    static_bytes: Floats
    static_by_category: Floats


#: Fields of tasks that a graph has as columns of numbers.
_AMOUNTS = (
    *("latency_s", "work_s", "alloc_bytes", "free_bytes"),
    *("flop", "memory_traffic_bytes", "link_traffic_bytes"),
)


def graph_of(assembly: Assembly) -> ExecutionGraph:
    """Return the execution graph; every rank is a class of its own."""
    tasks, count = assembly.tasks, len(assembly.tasks)
    stream_offsets, stream_ids = _csr([task.streams for task in tasks])
    successor_offsets, successors = _successors(assembly.before, count)
    flow_offsets, flow_links = _csr([[link for link, _ in task.flows] for task in tasks])
    names: dict[str, int] = {}
    name_ids = [names.setdefault(task.name, len(names)) for task in tasks]

    def column(name: str, kind: type) -> NDArray[Any]:
        return np.array([getattr(task, name) for task in tasks], dtype=kind)

    return ExecutionGraph(
        **{name: column(name, np.int8) for name in ("kind", "phase", "stage")},
        **{name: column(name, np.float64) for name in _AMOUNTS},
        stream_offsets=stream_offsets,
        stream_ids=stream_ids,
        successor_offsets=successor_offsets,
        successors=successors,
        flow_offsets=flow_offsets,
        flow_links=flow_links,
        flow_bytes_per_s=np.array([rate for t in tasks for _, rate in t.flows], dtype=np.float64),
        overlaps=column("overlaps", np.bool_),
        stream_class=np.array(assembly.stream_ranks, dtype=np.int64),
        stream_kind=np.array(assembly.stream_kinds, dtype=np.int8),
        class_ranks=np.ones(len(assembly.rank_names), dtype=np.int64),
        class_names=tuple(assembly.rank_names),
        static_bytes=assembly.static_bytes,
        link_bandwidth_bytes_per_s=np.array(assembly.link_bytes_per_s, dtype=np.float64),
        link_names=tuple(assembly.link_names),
        compute_rate_while_communicating=assembly.compute_rate,
        communication_rate_while_computing=assembly.communication_rate,
        name_ids=np.array(name_ids, dtype=np.int64),
        names=tuple(names),
        micro_batch=column("micro_batch", np.int64),
        memory_category=column("category", np.int8),
        category_names=tuple(assembly.categories),
        static_by_category=assembly.static_by_category,
    )


def _csr(rows: Sequence[Sequence[int]]) -> tuple[Integers, Integers]:
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return offsets, np.array([value for row in rows for value in row], dtype=np.int64)


def _successors(before: Sequence[Sequence[int]], count: int) -> tuple[Integers, Integers]:
    """Turn what each task waits for into what waits for each task."""
    offsets, earlier = _csr(before)
    later = np.repeat(np.arange(count), np.diff(offsets))
    order = np.argsort(earlier, kind="stable")
    starts = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(earlier, minlength=count), out=starts[1:])
    return starts, later[order]
