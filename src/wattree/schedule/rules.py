"""Heuristic schedules without a solver: first come first served, and greedy insertion."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from wattree.arrays import Flags
from wattree.schedule.problem import Problem, StartTable, TaskStart

#: Objectives that are times.
_TIMES = ("completion", "makespan")
#: Orders that are drawn for ten tasks or fewer, from a fixed seed; fewer for more tasks, whose
#: orders take longer to try.
_DRAWN, _FEWEST, _SEED = 60, 4, 7


class Timetable:
    """Nodes and power in use in each slot."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._nodes = np.zeros(problem.slots, dtype=np.int64)
        self._power_w = np.zeros(problem.slots)

    def free(self, choice: StartTable) -> Flags:
        """Return the start times at which a choice has enough nodes and power throughout."""
        full = self._nodes + choice.nodes > self._problem.nodes
        spare_w = self._problem.spare_w
        if np.isfinite(spare_w):
            full |= self._power_w + choice.power_w > spare_w * (1 + 1e-12)
        before = np.concatenate(([0], np.cumsum(full)))
        starts = np.arange(choice.first, choice.first + len(choice.end_s))
        return np.asarray(before[starts + choice.slots] == before[starts])

    def take(self, choice: StartTable, slot: int) -> None:
        """Reserve the nodes and power of a choice, starting at a slot."""
        self._add(choice, slot, 1)

    def give_back(self, choice: StartTable, slot: int) -> None:
        """Release what was reserved."""
        self._add(choice, slot, -1)

    def _add(self, choice: StartTable, slot: int, sign: int) -> None:
        self._nodes[slot : slot + choice.slots] += sign * choice.nodes
        self._power_w[slot : slot + choice.slots] += sign * choice.power_w


def first_come(problem: Problem) -> tuple[TaskStart, ...] | None:
    """Return the schedule of a plain queue; None if the horizon is too short.

    Tasks start in the order of their release, each as fast as it can be run; none overtakes
    another.
    """
    table, starts, earliest = Timetable(problem), [], 0
    order = sorted(range(len(problem.tasks)), key=lambda n: problem.tasks[n].release_s)
    for number in order:
        own = [each for each in problem.choices if each.task == number]
        if not own:
            return None
        fastest = min(own, key=lambda each: (each.slots, each.nodes))
        free = np.flatnonzero(table.free(fastest)) + fastest.first
        later = free[free >= earliest]
        if not len(later):
            return None
        earliest = int(later[0])
        table.take(fastest, earliest)
        starts.append(TaskStart(task=number, way=fastest.way, slot=earliest))
    return tuple(starts)


def inserted(problem: Problem) -> tuple[TaskStart, ...] | None:
    """Return the best heuristic schedule; never worse than first come, first served.

    They put in one task after the other, in many orders; where time is the objective, also with
    only the way of each task that takes the least nodes times slots, as the fastest crowd others.
    """
    best: tuple[tuple[float, float], tuple[TaskStart, ...]] | None = None
    every = problem.choices
    sets = [every, _thriftiest(problem)] if problem.objective in _TIMES else [every]
    inserted_ones = (_in_order(problem, own, each) for each in _orders(problem) for own in sets)
    for found in (first_come(problem), *inserted_ones):
        if found is not None:
            merit = problem.lateness(found), cost_of(problem, found)
            if best is None or merit < best[0]:
                best = merit, found
    return None if best is None else best[1]


def cost_of(problem: Problem, starts: Sequence[TaskStart]) -> float:
    """Return the cost that the solver minimizes after lateness."""
    choices = {(choice.task, choice.way): choice for choice in problem.choices}
    value = 0.0
    for start in starts:
        choice = choices[start.task, start.way]
        value += float(choice.value[start.slot - choice.first])
    makespan = problem.total("makespan", starts) if problem.objective == "makespan" else 0.0
    return value + makespan


def _orders(problem: Problem) -> Iterator[list[int]]:
    tasks = problem.tasks
    numbers = range(len(tasks))
    area = [min(way.nodes * way.duration_s for way in task.ways) for task in tasks]
    due = [math.inf if task.deadline_s is None else task.deadline_s for task in tasks]
    keys: tuple[Callable[[int], float], ...] = (
        lambda n: tasks[n].release_s,
        lambda n: due[n],
        lambda n: -area[n],
        lambda n: area[n] / tasks[n].priority,
    )
    for key in keys:
        yield sorted(numbers, key=key)
    draw = np.random.default_rng(_SEED)
    for _ in range(max(_DRAWN * 10 // max(len(tasks), 10), _FEWEST)):
        yield draw.permutation(len(tasks)).tolist()


def _thriftiest(problem: Problem) -> tuple[StartTable, ...]:
    """Return, for each task, the choice with the fewest nodes times slots."""
    best: dict[int, StartTable] = {}
    for choice in problem.choices:
        known = best.get(choice.task)
        if known is None or choice.nodes * choice.slots < known.nodes * known.slots:
            best[choice.task] = choice
    return tuple(best.values())


def _in_order(
    problem: Problem, choices: Sequence[StartTable], order: Sequence[int]
) -> tuple[TaskStart, ...] | None:
    """Return the schedule in which each task, in this order, gets its best free start."""
    table, starts = Timetable(problem), []
    own: dict[int, list[StartTable]] = {}
    for choice in choices:
        own.setdefault(choice.task, []).append(choice)
    for number in order:
        best: tuple[tuple[float, float], StartTable, int] | None = None
        for choice in own.get(number, ()):
            free = np.flatnonzero(table.free(choice))
            if not len(free):
                continue
            ends = choice.end_s[free] if problem.objective == "makespan" else choice.value[free]
            at = int(np.lexsort((ends, choice.lateness[free]))[0])
            merit = float(choice.lateness[free][at]), float(ends[at])
            if best is None or merit < best[0]:
                best = merit, choice, int(free[at]) + choice.first
        if best is None:
            return None
        table.take(best[1], best[2])
        starts.append(TaskStart(task=number, way=best[1].way, slot=best[2]))
    return tuple(starts)
