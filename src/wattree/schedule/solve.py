"""Optimal schedules with bounds, by HiGHS: a 0-1 program with one column per start time.

`x` is 1 for the way and the slot in which a task starts. Lateness is made least first, then the
objective among schedules that are no later. A schedule by rules (`rules`) is there from the start,
so that a solver that runs out of time leaves no queue without an answer, only a wider gap.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.schedule.problem import Problem, StartTable, TaskStart
from wattree.schedule.rules import cost_of, inserted

#: The solver stops this near to its bound.
_GAP = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A schedule with its bounds.

    Attributes:
        starts: One for each task, in the order of tasks.
        lateness: Of it: seconds after deadlines times priorities. [s]
        least_lateness: No schedule has less. [s]
        cost: Its objective, ties included. [SI]
        least_cost: No schedule that is as little late has less. [SI]
    """

    starts: tuple[TaskStart, ...]
    lateness: float
    least_lateness: float
    cost: float
    least_cost: float

    @property
    def gap(self) -> float:
        """Relative gap to the bound; of the lateness if that is not proven optimal."""
        found, bound = self.lateness, self.least_lateness
        if found - bound <= _GAP * max(found, 1.0):
            found, bound = self.cost, self.least_cost
        return max(found - bound, 0.0) / abs(found) if found else 0.0

    def bounded_by(self, other: Solution) -> Solution:
        """Return the solution with the bounds of a problem whose tasks are no longer."""
        return replace(
            self,
            least_lateness=min(other.least_lateness, self.lateness),
            least_cost=min(other.least_cost, self.cost),
        )


def solve(problem: Problem, *, limit_s: float = 45.0) -> Solution | None:
    """Return the best schedule found, with bounds; None if none fits in the horizon.

    Args:
        limit_s: Time that the solver may take. [s]
    """
    began = time.monotonic()
    if {choice.task for choice in problem.choices} != set(range(len(problem.tasks))):
        return None
    best = inserted(problem)
    program = _Program(problem)
    late, least_late = (np.inf if best is None else problem.lateness(best)), 0.0
    if late > 0.0:
        found, least_late = program.least(program.lateness, limit_s / 2)
        least_late = max(least_late, program.sum_of_least(program.lateness))
        if found is not None and (best is None or problem.lateness(found) < late):
            best, late = found, problem.lateness(found)
    if best is None:
        return None
    left_s = limit_s - (time.monotonic() - began)
    found, least = None, program.sum_of_least(program.value) + least_makespan(problem)
    if cost_of(problem, best) - least > _GAP * abs(least):
        found, proven = program.least(program.value, left_s, no_later=late)
        least = max(least, proven)
    if found is not None and cost_of(problem, found) < cost_of(problem, best):
        best = found
    starts = tuple(sorted(best, key=lambda each: each.task))
    cost = cost_of(problem, starts)
    return Solution(
        starts=starts,
        lateness=problem.lateness(starts),
        least_lateness=min(least_late, problem.lateness(starts)),
        cost=cost,
        least_cost=min(least, cost),
    )


def least_makespan(problem: Problem) -> float:
    """Return a lower bound on the end of any schedule, for the makespan objective; else 0. [s]

    All nodes are busy from the beginning, or a task starts at its release and runs its fastest way.
    """
    if problem.objective != "makespan":
        return 0.0
    ways = [[way for way in task.ways if problem.fits(way)] for task in problem.tasks]
    area = sum(min(way.nodes * way.duration_s for way in own) for own in ways)
    alone = max(
        task.release_s + min(way.duration_s for way in own)
        for task, own in zip(problem.tasks, ways, strict=True)
    )
    slots = sum(min(way.nodes * problem.slots_of(way) for way in own) for own in ways)
    full_s = (math.ceil(slots / problem.nodes) - 1) * problem.slot_s  # to the start of the last one
    return max(area / problem.nodes, alone, full_s)


class _Program:
    """The 0-1 program: columns of all choices in sequence, and the makespan if it counts.

    Attributes:
        lateness, value: Of each column but the makespan's.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, self._choices = problem, problem.choices
        self._ends = np.cumsum([len(each.end_s) for each in self._choices])
        self.lateness: Floats = np.concatenate([each.lateness for each in self._choices])
        self.value: Floats = np.concatenate([each.value for each in self._choices])
        self._has_makespan = problem.objective == "makespan"
        self._rows = _capacity_rows(problem, self._choices, self._ends)

    def sum_of_least(self, cost: Floats) -> float:
        """Return a bound that needs no solver: every task as if it ran alone."""
        parts = np.split(cost, self._ends[:-1])
        least = np.full(len(self._problem.tasks), np.inf)
        for choice, part in zip(self._choices, parts, strict=True):
            least[choice.task] = min(least[choice.task], float(part.min()))
        return float(least.sum())

    def least(
        self, cost: Floats, limit_s: float, *, no_later: float | None = None
    ) -> tuple[tuple[TaskStart, ...] | None, float]:
        """Return the schedule of least cost, if one is found in time, and a bound on the cost.

        Args:
            cost: Of each column.
            limit_s: Time to find it. [s]
            no_later: Most lateness; None for any. [s]
        """
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        makespan = self._has_makespan and no_later is not None
        scale = max(float(np.abs(cost).sum()) / max(len(cost), 1), 1e-300)
        rows, most, least = list(self._rows[0]), list(self._rows[1]), list(self._rows[2])
        if no_later is not None and self.lateness.any():
            weight = max(float(self.lateness.max()), 1.0)
            at = np.flatnonzero(self.lateness)
            rows.append((at, self.lateness[at] / weight))
            most.append((no_later * (1 + 1e-9)) / weight + 1e-9)
            least.append(-np.inf)
        columns = len(cost) + makespan
        scaled = cost / scale
        if makespan:
            horizon_s = self._problem.slots * self._problem.slot_s
            scaled = np.append(cost, horizon_s) / horizon_s
            scale = horizon_s
            for at, ends_s in self._ends_by_task():
                rows.append((np.append(at, columns - 1), np.append(ends_s / horizon_s, -1.0)))
                most.append(0.0)
                least.append(-np.inf)
        matrix = csr_array(
            (
                np.concatenate([values for _, values in rows]),
                (
                    np.repeat(np.arange(len(rows)), [len(at) for at, _ in rows]),
                    np.concatenate([at for at, _ in rows]),
                ),
            ),
            shape=(len(rows), columns),
        )
        found = milp(
            scaled,
            integrality=np.append(np.ones(len(cost)), np.zeros(int(makespan))),
            bounds=Bounds(0.0, 1.0),
            constraints=LinearConstraint(matrix, least, most),
            options={"time_limit": max(limit_s, 1.0), "mip_rel_gap": _GAP},
        )
        bound = getattr(found, "mip_dual_bound", None)
        bound = -np.inf if bound is None or not np.isfinite(bound) else float(bound) * scale
        return (None if found.x is None else self._starts(found.x)), bound

    def _ends_by_task(self) -> list[tuple[Integers, Floats]]:
        """Return each task's columns and its end time in each."""
        first = np.concatenate(([0], self._ends[:-1]))
        found = []
        for number in range(len(self._problem.tasks)):
            own = [n for n, choice in enumerate(self._choices) if choice.task == number]
            at = np.concatenate([np.arange(first[n], self._ends[n]) for n in own])
            found.append((at, np.concatenate([self._choices[n].end_s for n in own])))
        return found

    def _starts(self, taken: Floats) -> tuple[TaskStart, ...]:
        parts = np.split(taken[: len(self.value)], self._ends[:-1])
        return tuple(
            TaskStart(task=choice.task, way=choice.way, slot=choice.first + int(at))
            for choice, part in zip(self._choices, parts, strict=True)
            for at in np.flatnonzero(part > 0.5)
        )


_Row = tuple[Integers, Floats]


def _capacity_rows(
    problem: Problem, choices: tuple[StartTable, ...], ends: Integers
) -> tuple[list[_Row], list[float], list[float]]:
    """Return rows with their upper and lower limits: each task once, nodes and power by slot."""
    capped = np.isfinite(problem.spare_w)
    once: list[list[Integers]] = [[] for _ in problem.tasks]
    at: list[list[Integers]] = [[] for _ in range(problem.slots)]
    of: list[list[int]] = [[] for _ in range(problem.slots)]
    for number, (choice, end) in enumerate(zip(choices, ends, strict=True)):
        first = int(end) - len(choice.end_s)
        once[choice.task].append(np.arange(first, end))
        for slot in range(choice.first, problem.slots):
            low = max(slot - choice.slots + 1 - choice.first, 0)
            high = min(slot - choice.first, len(choice.end_s) - 1)
            if low <= high:
                at[slot].append(np.arange(first + low, first + high + 1))
                of[slot].append(number)
    rows: list[_Row] = [(np.concatenate(own), np.ones(sum(map(len, own)))) for own in once]
    most, least = [1.0] * len(rows), [1.0] * len(rows)
    amounts = [[each.nodes / problem.nodes for each in choices]]
    if capped:
        amounts.append([each.power_w / max(problem.spare_w, 1e-9) for each in choices])
    for own, numbers in zip(at, of, strict=True):
        if own:
            lengths = [len(each) for each in own]
            for amount in amounts:
                values = np.repeat([amount[n] for n in numbers], lengths)
                rows.append((np.concatenate(own), values))
                most.append(1.0 + 1e-9)
                least.append(-np.inf)
    return rows, most, least
