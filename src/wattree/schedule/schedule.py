"""`schedule`: predict every way to run the jobs of a queue, and choose among them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wattree.accounts.bill import energy_usd_per_j
from wattree.accounts.energy_ledger import switch_w
from wattree.energy.hourly import HourlySeries
from wattree.errors import InfeasibleError
from wattree.job import own_pue_in_words, prices_in_words, site_in_words
from wattree.schedule.contention import Slowdown, slowdowns
from wattree.schedule.placing import Nodes, meeting, placed
from wattree.schedule.problem import Problem, QueuedTask, Tariff, TaskStart
from wattree.schedule.queue import JobQueue
from wattree.schedule.rules import first_come, inserted
from wattree.schedule.schedule_result import QueueSchedule, ScheduledJob, Totals
from wattree.schedule.solve import Solution, solve
from wattree.schedule.ways import PredictedWay, Progress, predicted_ways
from wattree.units import format_time

#: Lengths of slots that people think in. [s]
_SLOTS = (1, 5, 10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800)
#: Slots of a horizon: as many as the solver can take with so many ways.
_MOST_SLOTS, _FEWEST_SLOTS, _MOST_COLUMNS = 120, 24, 24_000
#: Rounds of schedule, placement and play until steps are as slow as the schedule took them to be.
_ROUNDS = 3
_SLOWER = 1e-3
_DAY_S = 86_400.0


def schedule(
    queue: JobQueue,
    *,
    calibration: str | Path | None = None,
    limit_s: float = 45.0,
    progress: Progress | None = None,
) -> QueueSchedule:
    """Return each job's start, placement, number of nodes and power limit.

    Args:
        calibration: File of constants; the shipped one if None.
        limit_s: Time that the solver may take. [s]
        progress: Called with (stage, done, total).

    Raises:
        InfeasibleError: Jobs fit on no number of nodes, or not under the power cap; all are named.
        WattreeError: A job is impossible.
    """
    ways, refused = predicted_ways(queue, calibration=calibration, progress=progress)
    at_rest = _at_rest(queue)
    _check(queue, at_rest, ways, refused)
    alone = problem = _problem(queue, at_rest, ways)
    rounds = _ROUNDS if queue.cluster.fabric.oversubscription > 1.0 else 1
    slower: dict[tuple[int, int], Slowdown] = {}
    bounds: Solution | None = None
    for rounds_left in reversed(range(rounds)):
        solution = solve(problem, limit_s=limit_s / rounds)
        assert solution is not None, "a schedule by rules is within the horizon"
        bounds = bounds or solution
        nodes = placed(problem, solution.starts, queue.cluster.fabric.leaf_nodes)
        chosen = _Chosen(problem, solution.bounded_by(bounds), nodes)
        more = _slower(queue, chosen, ways, calibration)
        if not more or not rounds_left:
            break
        for (task, way), factor in more.items():
            ways[task][way] = ways[task][way].slowed(factor.time, factor.energy)
            slower[task, way] = factor.after(slower.get((task, way), Slowdown()))
        problem = _roomy(queue, replace(problem, tasks=_tasks(queue, ways)))
    unplanned = max((factor.time for factor in more.values()), default=1.0)
    return _Answer(queue, chosen, alone, ways, slower, unplanned, refused).schedule()


def _at_rest(queue: JobQueue) -> Problem:
    """Return the problem without tasks. Switches of a cluster are on, whatever nodes do."""
    cluster, (pool,) = queue.cluster, queue.cluster.pools
    switches_w = switch_w(cluster, pool) if cluster.nodes > cluster.fabric.cabled_nodes else 0.0
    return Problem(
        tasks=(),
        nodes=cluster.nodes,
        slot_s=1.0,
        slots=1,
        power_cap_w=queue.power_cap_w,
        idle_w=cluster.site.pue * (pool.node.idle_w + switches_w),
        switch_w=cluster.site.pue * switches_w,
    )


def _tasks(queue: JobQueue, ways: Sequence[Sequence[PredictedWay]]) -> tuple[QueuedTask, ...]:
    return tuple(
        QueuedTask(
            name=job.name,
            ways=tuple(each.way for each in own),
            release_s=job.release_s,
            deadline_s=job.deadline_s,
            priority=job.priority,
        )
        for job, own in zip(queue.jobs, ways, strict=True)
    )


def _check(
    queue: JobQueue,
    at_rest: Problem,
    ways: Sequence[Sequence[PredictedWay]],
    refused: Sequence[Sequence[str]],
) -> None:
    """Reject jobs that cannot run even alone.

    Raises:
        InfeasibleError: With every such job and the reason.
    """
    cap_w, nodes = queue.power_cap_w, queue.cluster.nodes
    rest_w = nodes * at_rest.idle_w
    lines = []
    if cap_w is not None and cap_w <= rest_w:
        lines.append(f"power_cap: {cap_w:,.0f} W, but {nodes} nodes draw {rest_w:,.0f} W at rest")
    for job, own, reasons in zip(queue.jobs, ways, refused, strict=True):
        if not own:
            lines.append(f"{job.name}: " + "; ".join(reasons))
        elif at_rest.spare_w > 0.0 and not any(at_rest.fits(each.way) for each in own):
            least_w = min(at_rest.power_of(each.way) for each in own) + rest_w
            lower = "lower power_limits" if len(queue.limits_w) > 1 else "power_limits"
            lines.append(
                f"{job.name}: the cluster draws at least {least_w:,.0f} W while it runs, with all "
                f"other nodes at rest; power_cap is {cap_w:,.0f} W, both with PUE; raise it, or "
                f"give {lower}"
            )
    if lines:
        text = "".join(f"\n  {line}" for line in lines)
        raise InfeasibleError(f"{queue.source}: jobs that cannot run:{text}", {})


def _problem(queue: JobQueue, at_rest: Problem, ways: Sequence[Sequence[PredictedWay]]) -> Problem:
    """Return the problem with a horizon by which a plain queue is finished."""
    tasks = _tasks(queue, ways)
    horizon_s = queue.horizon_s or _horizon_s(queue, tasks)
    columns = sum(len(task.ways) for task in tasks)
    count = min(max(_MOST_COLUMNS // columns, _FEWEST_SLOTS), _MOST_SLOTS)
    slot_s = queue.slot_s or next((s for s in _SLOTS if s * count >= horizon_s), horizon_s / count)
    series = queue.terms.series
    problem = replace(
        at_rest,
        tasks=tasks,
        slot_s=slot_s,
        slots=max(math.ceil(horizon_s / slot_s), 1),
        objective=queue.objective.value,
        carbon=_tariff(series, "carbon_gco2e_per_j", queue.cluster.site.carbon_gco2e_per_j),
        price=_tariff(series, "price_usd_per_j", energy_usd_per_j(queue.cluster)),
    )
    return _roomy(queue, problem)


def _roomy(queue: JobQueue, problem: Problem) -> Problem:
    """Return the problem with a horizon in which heuristic schedules fit, if the queue sets none.

    Raises:
        InfeasibleError: The queue gives one that is too near.
    """
    while first_come(problem) is None or inserted(problem) is None:
        if queue.horizon_s is not None:
            raise InfeasibleError(
                f"{queue.source}: horizon: not all jobs end by {format_time(queue.horizon_s)}; "
                "give a later one, or none",
                {},
            )
        problem = replace(problem, slots=2 * problem.slots)
    return problem


def _horizon_s(queue: JobQueue, tasks: Sequence[QueuedTask]) -> float:
    """Return a time by which the jobs have probably ended, including waiting. [s]"""
    area_s = sum(min(w.nodes * w.duration_s for w in task.ways) for task in tasks)
    longest_s = max(min(w.duration_s for w in task.ways) for task in tasks)
    last_s = max(task.release_s for task in tasks)
    due_s = max((task.deadline_s or 0.0 for task in tasks), default=0.0)
    busy_s = last_s + longest_s + 1.5 * area_s / queue.cluster.nodes
    return max(busy_s, due_s, _DAY_S + longest_s if queue.terms.series is not None else 0.0)


def _tariff(series: HourlySeries | None, name: str, usual: float | None) -> Tariff:
    hourly = None if series is None else getattr(series, name)
    return Tariff(tuple(hourly) if hourly is not None else (usual or 0.0,))


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A schedule and the nodes of its tasks."""

    problem: Problem
    solution: Solution
    nodes: Nodes


def _slower(
    queue: JobQueue,
    chosen: _Chosen,
    ways: Sequence[Sequence[PredictedWay]],
    calibration: str | Path | None,
) -> dict[tuple[int, int], Slowdown]:
    """Return the ways that are slower at their placement than assumed, and by how much."""
    starts = chosen.solution.starts
    met = meeting(chosen.problem, starts, chosen.nodes, queue.cluster.fabric.leaf_nodes)
    taken = {start.task: ways[start.task][start.way] for start in starts}
    factors = slowdowns(queue.cluster, taken, chosen.nodes, met, calibration=calibration)
    index = {start.task: start.way for start in starts}
    return {
        (task, index[task]): factor
        for task, factor in factors.items()
        if max(factor.time, factor.energy) > 1.0 + _SLOWER
    }


@dataclass(frozen=True, slots=True)
class _Answer:
    """The inputs from which the answer is built.

    Attributes:
        alone: The problem with steps that meet no other job.
        unplanned: By how much steps are slower where they are placed than the schedule has them.
    """

    queue: JobQueue
    chosen: _Chosen
    alone: Problem
    ways: Sequence[Sequence[PredictedWay]]
    slower: Mapping[tuple[int, int], Slowdown]
    unplanned: float
    refused: Sequence[Sequence[str]]

    def schedule(self) -> QueueSchedule:
        """Return the answer."""
        starts, problem = self.chosen.solution.starts, self.chosen.problem
        plain = first_come(self.alone)
        assert plain is not None, "the horizon is roomy"
        order = sorted(starts, key=lambda s: (s.slot, s.task))
        the_cap = self._cap_makes_late()
        return QueueSchedule(
            queue=self.queue,
            jobs=tuple(self._job(start, capped=the_cap) for start in order),
            totals=self._totals(problem, starts),
            first_come=self._totals(self.alone, plain),
            least=self.chosen.solution.least_cost,
            least_lateness_s=self.chosen.solution.least_lateness,
            gap=self.chosen.solution.gap,
            slot_s=problem.slot_s,
            idle_w=problem.idle_w,
            switch_w=problem.switch_w,
            refused={
                job.name: tuple(reasons)
                for job, reasons in zip(self.queue.jobs, self.refused, strict=True)
                if reasons
            },
            notes=tuple(self._notes()),
        )

    def _job(self, start: TaskStart, *, capped: bool) -> ScheduledJob:
        predicted = self.ways[start.task][start.way]
        way, begin_s = predicted.way, start.slot * self.chosen.problem.slot_s
        low, high = predicted.interval
        return ScheduledJob(
            name=self.queue.jobs[start.task].name,
            nodes=self.chosen.nodes[start.task],
            power_limit_w=predicted.power_limit_w,
            strategy=predicted.strategy,
            start_s=begin_s,
            end_s=self.chosen.problem.end_s(start),
            end_interval_s=(begin_s + low * way.duration_s, begin_s + high * way.duration_s),
            deadline_s=self.queue.jobs[start.task].deadline_s,
            late_s=self.chosen.problem.late_s(start),
            late_because=self._why_late(start, capped=capped),
            slowdown=self.slower.get((start.task, start.way), Slowdown()).time,
            energy_j=way.energy_j,
            power_w=way.power_w,
            cost_usd=self._amount("cost", self.chosen.problem, [start]),
            carbon_gco2e=self._amount("carbon", self.chosen.problem, [start]),
        )

    def _totals(self, problem: Problem, starts: Sequence[TaskStart]) -> Totals:
        return Totals(
            energy_j=problem.total("energy", starts),
            cost_usd=self._amount("cost", problem, starts),
            carbon_gco2e=self._amount("carbon", problem, starts),
            makespan_s=problem.total("makespan", starts),
            completion_s=problem.total("completion", starts),
            lateness_s=problem.lateness(starts),
            late=sum(problem.late_s(start) > 0 for start in starts),
        )

    def _amount(
        self, objective: str, problem: Problem, starts: Sequence[TaskStart]
    ) -> float | None:
        """Return cost or carbon; None if the cluster has no price or no intensity."""
        cluster = self.queue.cluster
        known = (
            cluster.site.carbon_gco2e_per_j is not None
            if objective == "carbon"
            else energy_usd_per_j(cluster) is not None or cluster.node.price_usd_per_s is not None
        )
        return problem.total(objective, starts) if known else None

    def _cap_makes_late(self) -> bool:
        """Return whether removing the power cap reduces lateness."""
        problem = self.chosen.problem
        lateness = problem.lateness(self.chosen.solution.starts)
        if problem.power_cap_w is None or not lateness:
            return False
        free = replace(problem, power_cap_w=None)
        without = inserted(free)
        return without is not None and free.lateness(without) < lateness

    def _why_late(self, start: TaskStart, *, capped: bool) -> str:
        """Return what prevents a job from meeting its deadline."""
        late_s = self.chosen.problem.late_s(start)
        if not late_s:
            return ""
        task = self.chosen.problem.tasks[start.task]
        assert task.deadline_s is not None
        fitting = [way for way in task.ways if self.chosen.problem.fits(way)]
        soonest_s = task.release_s + min(way.duration_s for way in fitting)
        if capped:
            others = "the power cap: without it less is late"
        else:
            others = "the nodes: others with deadlines or higher priority have them"
        own_s = soonest_s - task.deadline_s
        if own_s <= 0.0:
            return others
        able = min(way.duration_s for way in task.ways) + task.release_s <= task.deadline_s
        cause = "the power cap" if able else "its own length"
        own = f"{cause}: started at once it would be {format_time(own_s)} late"
        waits_s = late_s - own_s
        if waits_s < self.chosen.problem.slot_s:
            return own
        return f"{own}; {format_time(waits_s)} more, {others}"

    def _notes(self) -> list[str]:
        slot = format_time(self.chosen.problem.slot_s)
        notes = [
            f"jobs start at multiples of {slot} and keep their nodes to the end of one",
            "jobs count toward the power cap with their mean power, nodes at rest with theirs, "
            "switches always",
            "nodes at rest count toward no job's energy, nor toward the objective",
            f"site {site_in_words(self.queue.cluster.site, self.queue.terms)}",
            *own_pue_in_words(self.queue.cluster.site, [self.queue.cluster.node]),
            *prices_in_words(self.queue.cluster, self.queue.terms),
        ]
        series = self.queue.terms.series
        if (
            series is not None
            and self.chosen.problem.slots * self.chosen.problem.slot_s > 3600 * len(series.hours)
        ):
            notes.append(f"{series.name} has {len(series.hours)} hours and repeats")
        if self.slower:
            notes.append(
                "steps of jobs that share uplinks were simulated together; they take longer"
            )
            notes.append("the bound, and first come first served, are of steps that meet no other")
        if self.unplanned > 1.0:
            notes.append(
                f"where jobs are placed, one meets others and takes {self.unplanned:.2f} x as long "
                "as stated; every schedule that avoids it meets others in turn"
            )
        return notes
