"""The rules of execution, followed to the letter and as plainly as Python can say them.

Slow on purpose: tests hold the compiled engine against it. Both do the same floating-point
operations in the same order, so their traces are equal bit by bit. The rules are in
`wattree.graph.execution_graph`; the numbers in comments here are theirs.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattree.graph import ExecutionGraph, TaskKind
from wattree.sim.checks import check_graph
from wattree.sim.deadlock import halt_error
from wattree.sim.policies import check_sharing, without_slowdown
from wattree.sim.rules import CROWDED_TOLERANCE, EVENT_KINDS, EventKind
from wattree.trace import Trace


@dataclass(frozen=True, slots=True)
class Flow:
    """The bandwidth that a communication takes on each link at rate 1. [B/s]"""

    links: tuple[tuple[int, float], ...]
    counts: tuple[float, ...] = ()  # of the links, how many flows this one stands for there
    largest: tuple[float, ...] = ()  # of the links, what the largest of those takes, if unequal

    @property
    def busiest_bytes_per_s(self) -> float:
        """Bandwidth on its busiest link, of one of the flows that it stands for. [B/s]"""
        if self.largest:
            return max(self.largest)
        if not self.counts:
            return max(bandwidth for _, bandwidth in self.links)
        return max(
            bandwidth / (number if number > 0 else 1.0)
            for (_, bandwidth), number in zip(self.links, self.counts, strict=True)
        )


def crowded_links(flows: dict[int, Flow], bandwidth_bytes_per_s: NDArray[np.float64]) -> set[int]:
    """Return the links that cannot carry all their flows at rate 1."""
    demand: dict[int, float] = {}
    for flow in flows.values():
        for link, bandwidth in flow.links:
            demand[link] = demand.get(link, 0.0) + bandwidth
    return {
        link
        for link, total in demand.items()
        if total > float(bandwidth_bytes_per_s[link]) * CROWDED_TOLERANCE
    }


def fair_shares(
    flows: dict[int, Flow], bandwidth_bytes_per_s: NDArray[np.float64]
) -> dict[int, float]:
    """Return the max-min fair rate of each flow by progressive filling.

    Args:
        flows: Task → flow, in the order in which they began; sums are taken in that order.
        bandwidth_bytes_per_s: Of each link. [B/s]
    """
    crowded = crowded_links(flows, bandwidth_bytes_per_s)
    shares: dict[int, float] = {}
    level_bytes_per_s = 0.0
    while len(shares) < len(flows):
        full_at = {
            link: _level_that_fills(link, flows, shares, float(bandwidth_bytes_per_s[link]))
            for link in crowded
        }
        full_at = {link: max(level, level_bytes_per_s) for link, level in full_at.items()}
        growing = {task: flow for task, flow in flows.items() if task not in shares}
        known = len(shares)
        caps = [flow.busiest_bytes_per_s for flow in growing.values()]
        level_bytes_per_s = min([*full_at.values(), *caps])
        for task, flow in growing.items():
            full = any(full_at.get(link, math.inf) <= level_bytes_per_s for link, _ in flow.links)
            if full or flow.busiest_bytes_per_s <= level_bytes_per_s:
                shares[task] = min(1.0, level_bytes_per_s / flow.busiest_bytes_per_s)
        if len(shares) == known:  # sums that are no numbers any more: found at rest later
            shares |= dict.fromkeys(growing, 0.0)
    return shares


def _level_that_fills(
    link: int, flows: dict[int, Flow], shares: dict[int, float], bandwidth_bytes_per_s: float
) -> float:
    """Return the level at which the growing flows fill a link; infinite if none grows there."""
    left_bytes_per_s, growth = bandwidth_bytes_per_s, 0.0
    for task, flow in flows.items():
        for flow_link, bandwidth in flow.links:
            if flow_link == link and task in shares:
                left_bytes_per_s -= shares[task] * bandwidth
            elif flow_link == link:
                growth += bandwidth / flow.busiest_bytes_per_s
    return left_bytes_per_s / growth if growth > 0.0 else math.inf


def counted_shares(flows: dict[int, Flow]) -> dict[int, float]:
    """Return each flow's rate as Proteus has it: 1 over the number on its most loaded link."""
    whole = {
        task: [
            (link, max(round(n), 1) if n else 0)
            for (link, _), n in zip(flow.links, flow.counts, strict=True)
        ]
        for task, flow in flows.items()
    }
    present: Counter[int] = Counter()
    for counted in whole.values():
        present.update(dict(counted))
    return {
        task: 1.0 / max([1, *(present[link] for link, number in counted if number)])
        for task, counted in whole.items()
    }


@dataclass(slots=True)
class _Work:
    """Progress of a task in its work phase."""

    remaining_s: float
    since_s: float
    rate: float = 0.0
    end_s: float = math.inf
    slowed: bool = False  # overlap has made it longer


@dataclass(slots=True)
class _Executor:
    """State of the play between two events."""

    graph: ExecutionGraph
    sharing: str
    streams: list[tuple[int, ...]] = field(init=False)
    classes: list[tuple[int, ...]] = field(init=False)
    successors: list[tuple[int, ...]] = field(init=False)
    flows: list[Flow] = field(init=False)
    computing: set[int] = field(init=False)
    communicating: set[int] = field(init=False)
    queues: list[list[int]] = field(init=False)
    unmet: list[int] = field(init=False)
    events: list[tuple[float, int, int]] = field(default_factory=list)
    working: dict[int, _Work] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    level_bytes: list[float] = field(init=False)
    peak_bytes: list[float] = field(init=False)
    peak_task: list[int] = field(init=False)
    start_s: dict[int, float] = field(default_factory=dict)
    end_s: dict[int, float] = field(default_factory=dict)
    log: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        graph, tasks = self.graph, range(self.graph.tasks)
        self.streams = [_row(graph.stream_offsets, graph.stream_ids, t) for t in tasks]
        self.classes = [
            tuple(dict.fromkeys(int(graph.stream_class[s]) for s in streams))
            for streams in self.streams
        ]
        self.successors = [_row(graph.successor_offsets, graph.successors, t) for t in tasks]
        self.flows = [_flow(graph, t) for t in tasks]
        moves = (TaskKind.COLLECTIVE, TaskKind.TRANSFER)
        self.computing = {t for t in tasks if graph.kind[t] == TaskKind.COMPUTE}
        self.communicating = {t for t in tasks if graph.kind[t] in moves}
        self.queues = [[] for _ in graph.stream_class]
        for task in tasks:
            for stream in self.streams[task]:
                self.queues[stream].append(task)
        counts = Counter(s for successors in self.successors for s in successors)
        self.unmet = [counts[task] for task in tasks]
        self.level_bytes = [float(b) for b in graph.static_bytes]
        self.peak_bytes = list(self.level_bytes)
        self.peak_task = [-1] * len(self.level_bytes)

    def execute(self) -> None:
        """Play until nothing is left to happen."""
        for task in range(self.graph.tasks):
            self._start_if_ready(0.0, task)
        while self.events and self.events[0][0] < math.inf:
            now_s = self.events[0][0]
            while self.events and self.events[0][0] == now_s:
                self._handle(*heapq.heappop(self.events))
            self._update_rates(now_s)  # rule 5: once per instant

    def _handle(self, now_s: float, priority: int, task: int) -> None:
        self.log.append(task * EVENT_KINDS + priority)
        match EventKind(priority):
            case EventKind.END:
                self._end(now_s, task)
            case EventKind.WORK:
                self._begin_work(now_s, task)
            case EventKind.START:
                self._start(now_s, task)

    def _push(self, now_s: float, kind: EventKind, task: int) -> None:
        heapq.heappush(self.events, (now_s, int(kind), task))

    def _start_if_ready(self, now_s: float, task: int) -> None:
        """Rule 1."""
        first = all(self.queues[stream][0] == task for stream in self.streams[task])
        if first and self.unmet[task] == 0 and task not in self.started:
            self.started.add(task)
            self._push(now_s, EventKind.START, task)

    def _start(self, now_s: float, task: int) -> None:
        """Rules 2 and 6."""
        self.start_s[task] = now_s
        for rank_class in self.classes[task]:
            self.level_bytes[rank_class] += float(self.graph.alloc_bytes[task])
            if self.level_bytes[rank_class] > self.peak_bytes[rank_class]:
                self.peak_bytes[rank_class] = self.level_bytes[rank_class]
                self.peak_task[rank_class] = task
        latency_s, work_s = float(self.graph.latency_s[task]), float(self.graph.work_s[task])
        if work_s == 0.0:
            self._push(now_s + latency_s, EventKind.END, task)
        elif latency_s > 0.0:
            self._push(now_s + latency_s, EventKind.WORK, task)
        else:
            self._begin_work(now_s, task)

    def _begin_work(self, now_s: float, task: int) -> None:
        self.working[task] = _Work(float(self.graph.work_s[task]), now_s)

    def _end(self, now_s: float, task: int) -> None:
        self.end_s[task] = now_s
        self.working.pop(task, None)
        for rank_class in self.classes[task]:
            self.level_bytes[rank_class] -= float(self.graph.free_bytes[task])
        for successor in self.successors[task]:
            self.unmet[successor] -= 1
            self._start_if_ready(now_s, successor)
        for stream in self.streams[task]:
            self.queues[stream].pop(0)
            if self.queues[stream]:
                self._start_if_ready(now_s, self.queues[stream][0])

    def _update_rates(self, now_s: float) -> None:
        """Rules 3 and 4; a task whose rate stays keeps its end to the last bit."""
        shares, factors = self._shares(), self._overlap_factors()
        for task, work in self.working.items():
            rate = shares.get(task, 1.0)
            if self.sharing != "proteus":
                rate *= factors[task]
            elif factors[task] < 1.0 and not work.slowed:
                self._reckon(now_s, work)
                more = 1.0 / factors[task] - 1.0 if factors[task] > 0.0 else math.inf
                work.remaining_s += float(self.graph.work_s[task]) * more
                work.rate, work.slowed = 0.0, True
            rate = max(0.0, rate)  # NaN is a standstill, too
            if rate == work.rate:
                continue
            self._reckon(now_s, work)
            if work.end_s < math.inf:
                self.events.remove((work.end_s, int(EventKind.END), task))
                heapq.heapify(self.events)
            work.rate = rate
            work.end_s = now_s + work.remaining_s / rate if rate > 0.0 else math.inf
            if work.end_s < math.inf:
                self._push(work.end_s, EventKind.END, task)

    def _reckon(self, now_s: float, work: _Work) -> None:
        """Take off what has been done since the last reckoning."""
        work.remaining_s = max(0.0, work.remaining_s - (now_s - work.since_s) * work.rate)
        work.since_s = now_s

    def _shares(self) -> dict[int, float]:
        """Rule 4: what links leave to each flow."""
        flows = {t: self.flows[t] for t in self.working if self.flows[t].links}
        match self.sharing:
            case "max-min":
                return fair_shares(flows, self.graph.link_bandwidth_bytes_per_s)
            case "proteus":
                return counted_shares(flows)
        return {}

    def _overlap_factors(self) -> dict[int, float]:
        """Rules 3 and 4: at what part of its share each task works alongside what overlaps it."""
        graph = self.graph
        computing = {c for t in self.working for c in self.classes[t] if t in self.computing}
        communicating = {
            c
            for t in self.working
            for c in self.classes[t]
            if t in self.communicating and graph.overlaps[t]
        }
        factors = {}
        for task in self.working:
            factors[task] = 1.0
            if task in self.computing and communicating.intersection(self.classes[task]):
                factors[task] = graph.compute_rate_while_communicating
            elif (
                task in self.communicating
                and graph.overlaps[task]
                and computing.intersection(self.classes[task])
            ):
                factors[task] = graph.communication_rate_while_computing
        return factors


def _row(offsets: NDArray[np.int64], values: NDArray[np.int64], row: int) -> tuple[int, ...]:
    return tuple(int(value) for value in values[offsets[row] : offsets[row + 1]])


def _flow(graph: ExecutionGraph, task: int) -> Flow:
    """Return a task's flow; a link on which it takes nothing is none of its links."""
    row = slice(graph.flow_offsets[task], graph.flow_offsets[task + 1])
    counts = np.ones(len(graph.flow_links)) if graph.flow_counts is None else graph.flow_counts
    columns = (graph.flow_links[row], graph.flow_bytes_per_s[row], counts[row])
    kept = [(int(k), float(width), float(n)) for k, width, n in zip(*columns, strict=True) if width]
    largest = graph.flow_largest_bytes_per_s
    return Flow(
        links=tuple((link, width) for link, width, _ in kept),
        counts=tuple(number for _, _, number in kept),
        largest=() if largest is None else tuple(largest[row].tolist()),
    )


def execute_reference(
    graph: ExecutionGraph, *, sharing: str = "max-min", mutual_slowdown: bool = True
) -> Trace:
    """Play a graph slowly and plainly; the result equals that of `wattree.sim.execute`.

    Raises:
        SimulationError: The graph is malformed or comes to a deadlock.
        UnknownNameError: There is no such sharing policy.
    """
    return reference_events(graph, sharing=sharing, mutual_slowdown=mutual_slowdown)[0]


def reference_events(
    graph: ExecutionGraph, *, sharing: str = "max-min", mutual_slowdown: bool = True
) -> tuple[Trace, NDArray[np.int64]]:
    """Return the trace and every event in its order, as `task * EVENT_KINDS + EventKind`."""
    check_sharing(sharing)
    graph = graph if mutual_slowdown else without_slowdown(graph)
    check_graph(graph)
    player = _Executor(graph, sharing)
    player.execute()
    if len(player.end_s) < graph.tasks:
        started = np.array([task in player.start_s for task in range(graph.tasks)])
        ended = np.array([task in player.end_s for task in range(graph.tasks)])
        raise halt_error(graph, started, ended)
    trace = Trace(
        graph=graph,
        start_s=np.array([player.start_s[t] for t in range(graph.tasks)], dtype=np.float64),
        end_s=np.array([player.end_s[t] for t in range(graph.tasks)], dtype=np.float64),
        peak_bytes=np.array(player.peak_bytes, dtype=np.float64),
        peak_task=np.array(player.peak_task, dtype=np.int64),
        events=len(player.log),
    )
    return trace, np.array(player.log, dtype=np.int64)
