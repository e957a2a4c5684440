"""Simulate several jobs on one fabric: one step of the first, the others repeating meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from wattree.arrays import Flags
from wattree.errors import JobError
from wattree.graph import ExecutionGraph, JobTasks, Repeated, part_of, repeated, with_links_apart
from wattree.sim import execute
from wattree.trace import Trace

#: Tasks of all jobs and steps that are executed at most: some 5 GiB of arrays.
_MOST_TASKS = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of execution.

    Attributes:
        sharing: How flows share a link, as `wattree.sim.execute` knows it.
        mutual_slowdown: Computation and communication of a rank slow each other.
    """

    sharing: str = "max-min"
    mutual_slowdown: bool = True

    def execute(self, graph: ExecutionGraph) -> Trace:
        """Execute a graph under these rules."""
        return execute(graph, sharing=self.sharing, mutual_slowdown=self.mutual_slowdown)


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricExecution:
    """One execution.

    Attributes:
        own: The first job's part of it; its step begins at 0. Its peaks name no tasks.
        tasks: The first job's tasks in `trace`.
        offsets_s: How long before its step those of the others began. [s]
        begin_s: When its step begins in `trace`. [s]
        whole_steps_s: By other job, how long those of its steps take that lie within. [s]
    """

    trace: Trace
    own: Trace
    tasks: slice
    offsets_s: tuple[float, ...]
    begin_s: float
    whole_steps_s: tuple[tuple[float, ...], ...]

    @property
    def end_s(self) -> float:
        """When the first job's step ends in `trace`. [s]"""
        return self.begin_s + self.own.makespan_s


@dataclass(slots=True, kw_only=True)
class SharedFabric:
    """Jobs on their fabric.

    Attributes:
        graph: One step of each.
        jobs: The jobs in it.
        alone_s: Step of each without the others. [s]
    """

    graph: ExecutionGraph
    jobs: Sequence[JobTasks]
    sources: Sequence[str]
    alone_s: Sequence[float]
    rules: Rules
    _own: ExecutionGraph = field(init=False)
    _steps: tuple[int, ...] = field(init=False)
    _repeated: Repeated | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._own = part_of(self.graph, self.jobs[0])
        self._steps = (1,) * len(self.jobs)

    def executed(self, offsets_s: tuple[float, ...]) -> FabricExecution:
        """Execute one step of the first job, the others repeating theirs until it ends.

        Args:
            offsets_s: How long before that step theirs begin, one for each of them. [s]

        Raises:
            JobError: That makes too many tasks.
        """
        begin_s = max(offsets_s)
        delays_s = [begin_s, *(begin_s - offset for offset in offsets_s)]
        lasts_s = self.alone_s[0]
        while True:
            fabric = self._repeating(delays_s, begin_s + lasts_s)
            trace = self.rules.execute(fabric.late_by(delays_s))
            tasks = fabric.step(0, 0)
            end_s = float(trace.end_s[tasks].max(initial=begin_s))
            others = range(1, len(self.jobs))
            if all(_end_s(fabric, trace, job, self._steps[job] - 1) >= end_s for job in others):
                break
            lasts_s = 1.25 * max(end_s - begin_s, lasts_s)  # slower than alone: play on
        return FabricExecution(
            trace=trace,
            own=self._part(trace, tasks, begin_s),
            tasks=tasks,
            offsets_s=offsets_s,
            begin_s=begin_s,
            whole_steps_s=tuple(_whole_steps_s(fabric, trace, j, begin_s, end_s) for j in others),
        )

    def apart(self, links: Flags) -> SharedFabric:
        """Return the fabric on which each job has some links to itself, `(L,)`."""
        return SharedFabric(
            graph=with_links_apart(self.graph, self.jobs, links),
            jobs=self.jobs,
            sources=self.sources,
            alone_s=self.alone_s,
            rules=self.rules,
        )

    def _repeating(self, delays_s: Sequence[float], until_s: float) -> Repeated:
        """Return the graph in which the other jobs have steps until a moment, or longer. [s]"""
        needed = [1]
        for late_s, step_s in zip(delays_s[1:], self.alone_s[1:], strict=True):
            needed.append(max(int(np.ceil((until_s - late_s) / step_s)), 1) if step_s > 0 else 1)
        steps = tuple(max(pair) for pair in zip(needed, self._steps, strict=True))
        if self._repeated is None or steps != self._steps:
            self._check_count(steps)
            self._steps = steps
            self._repeated = repeated(self.graph, self.jobs, steps)
        return self._repeated

    def _check_count(self, steps: Sequence[int]) -> None:
        sizes = [job.tasks.stop - job.tasks.start for job in self.jobs]
        tasks = sum(count * size for count, size in zip(steps, sizes, strict=True))
        if tasks > _MOST_TASKS:
            most = int(np.argmax(np.array(steps) * sizes))
            raise JobError(
                self.sources[0],
                [
                    f"neighbours: one step of this job meets {steps[most]:,} of "
                    f"{self.sources[most]}, and all together make {tasks:,} tasks, more than the "
                    f"{_MOST_TASKS:,} that can be executed; use jobs of fewer micro-batches, or "
                    "whose steps are more alike in length"
                ],
            )

    def _part(self, trace: Trace, tasks: slice, begin_s: float) -> Trace:
        return Trace(
            graph=self._own,
            start_s=trace.start_s[tasks] - begin_s,
            end_s=trace.end_s[tasks] - begin_s,
            peak_bytes=trace.peak_bytes[self.jobs[0].classes],
            peak_task=np.full(len(self._own.class_ranks), -1),
            events=trace.events,
        )


def _end_s(fabric: Repeated, trace: Trace, job: int, step: int) -> float:
    begin_s = trace.end_s[fabric.gates[job][step]]
    return float(trace.end_s[fabric.step(job, step)].max(initial=begin_s))


def _whole_steps_s(
    fabric: Repeated, trace: Trace, job: int, begin_s: float, end_s: float
) -> tuple[float, ...]:
    """Return how long those steps of a job took that lie between two moments. [s]"""
    gates = fabric.gates[job]
    first_s = trace.end_s[gates]
    last_s = np.array([_end_s(fabric, trace, job, step) for step in range(len(gates))])
    within = (first_s >= begin_s) & (last_s <= end_s)
    return tuple((last_s - first_s)[within].tolist())
