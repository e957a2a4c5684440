"""The scheduling problem: tasks, the ways to run each, and shared resources. Pure.

Time is cut into slots. A task starts at the beginning of a slot and occupies its nodes until
the end of its last one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from wattree.arrays import Floats
from wattree.energy.hourly import HOUR_S


@dataclass(frozen=True, slots=True)
class Tariff:
    """Price or emission of a joule in each hour from the start of a queue.

    Attributes:
        hourly: Of each hour; after the last the first follows again. `(H,)`
    """

    hourly: tuple[float, ...] = (0.0,)

    def mean(self, start_s: Floats, length_s: float) -> Floats:
        """Return the average over intervals of equal length that begin at `start_s`."""
        if len(self.hourly) == 1 or length_s <= 0.0:
            return np.full(np.shape(start_s), self.hourly[0])
        return np.asarray((self._until(start_s + length_s) - self._until(start_s)) / length_s)

    def _until(self, time_s: Floats) -> Floats:
        """Return the integral from 0 to each time."""
        sums = np.concatenate(([0.0], np.cumsum(self.hourly))) * HOUR_S
        period_s = len(self.hourly) * HOUR_S
        rounds, rest_s = np.divmod(time_s, period_s)
        hours = np.arange(len(sums)) * HOUR_S
        return np.asarray(rounds * sums[-1] + np.interp(rest_s, hours, sums))


#: What a schedule has least of, after lateness.
OBJECTIVES = ("energy", "cost", "carbon", "completion", "makespan")
#: Of two schedules that are equally good the one that ends earlier is taken: mean completion counts
#: with this share of the objective.
TIE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to run a task.

    Attributes:
        duration_s: From its start to its end. [s]
        energy_j: Of its nodes, PUE included. [J]
        fixed_usd: What it costs whenever it runs: rent. [USD]
        fixed_gco2e: What it emits whenever it runs: embodied in its nodes. [gCO2e]
    """

    nodes: int
    duration_s: float
    energy_j: float
    fixed_usd: float = 0.0
    fixed_gco2e: float = 0.0

    @property
    def power_w(self) -> float:
        """Average power, PUE included. [W]"""
        return self.energy_j / self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedTask:
    """A task to be run once.

    Attributes:
        ways: Combinations of nodes and power limit that can run it; at least one.
        release_s: It cannot start before. [s]
        deadline_s: It should have ended by then; None: whenever. [s]
        priority: Weight of its lateness and of its completion.
    """

    name: str
    ways: tuple[Way, ...]
    release_s: float = 0.0
    deadline_s: float | None = None
    priority: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStart:
    """When and how a task runs.

    Attributes:
        task, way: Their numbers.
        slot: In which it starts.
    """

    task: int
    way: int
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTable:
    """One way of one task at all its start times, `(n,)` each.

    Attributes:
        task, way: Their numbers.
        power_w: That it takes beyond what its nodes draw at rest. [W]
        first: Slot of the first start; the others follow one by one.
        end_s: When it ends. [s]
        lateness: Seconds after the deadline, times the priority. [s]
        value: What the objective adds up, ties settled by completion.
    """

    task: int
    way: int
    nodes: int
    power_w: float
    slots: int
    first: int
    end_s: Floats
    lateness: Floats
    value: Floats


def above_rest_w(power_w: float, nodes: int, idle_w: float, switch_w: float) -> float:
    """Return the power of a task on some nodes above theirs at rest, as `Problem` has it. [W]"""
    uncounted_w = switch_w if nodes == 1 else 0.0
    return max(power_w + uncounted_w - nodes * idle_w, 0.0)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Tasks and the resources that they share.

    Attributes:
        nodes: That there are, all alike.
        slot_s: Length of a slot. [s]
        slots: Until the horizon, by which all tasks have ended.
        power_cap_w: That all nodes together may draw, PUE included; None: any. [W]
        idle_w: That a node draws at rest, with its switches and PUE. [W]
        switch_w: Part of it that the energy of a task on one node does not include: of switches,
            which are on whatever runs. [W]
        objective: One of `OBJECTIVES`.
        carbon: Grid intensity. [gCO2e/J]
        price: Of energy. [USD/J]
    """

    tasks: tuple[QueuedTask, ...]
    nodes: int
    slot_s: float
    slots: int
    power_cap_w: float | None = None
    idle_w: float = 0.0
    switch_w: float = 0.0
    objective: str = "energy"
    carbon: Tariff = field(default_factory=Tariff)
    price: Tariff = field(default_factory=Tariff)

    @property
    def spare_w(self) -> float:
        """Power available to jobs above all idle nodes. [W]"""
        cap_w = self.power_cap_w
        return math.inf if cap_w is None else cap_w - self.nodes * self.idle_w

    def slots_of(self, way: Way) -> int:
        """Return the number of slots that a way takes."""
        return max(math.ceil(way.duration_s / self.slot_s - 1e-9), 1)

    def fits(self, way: Way) -> bool:
        """Return whether nodes and power are sufficient for a way if nothing else runs."""
        return way.nodes <= self.nodes and self.power_of(way) <= self.spare_w

    def power_of(self, way: Way) -> float:
        """Return the power of a way above that of its idle nodes. [W]"""
        return above_rest_w(way.power_w, way.nodes, self.idle_w, self.switch_w)

    @cached_property
    def choices(self) -> tuple[StartTable, ...]:
        """All options that fit, with all start times within the horizon."""
        found = [
            self._choice(number, index)
            for number, task in enumerate(self.tasks)
            for index, way in enumerate(task.ways)
            if self.fits(way)
        ]
        return tuple(each for each in found if len(each.end_s))

    def _choice(self, number: int, index: int) -> StartTable:
        task = self.tasks[number]
        way = task.ways[index]
        slots = self.slots_of(way)
        first = math.ceil(task.release_s / self.slot_s - 1e-9)
        starts = np.arange(first, max(self.slots - slots, first - 1) + 1, dtype=np.float64)
        start_s: Floats = starts * self.slot_s
        end_s: Floats = start_s + way.duration_s
        late_s: Floats = np.zeros(len(start_s))
        if task.deadline_s is not None:
            late_s = np.maximum(end_s - task.deadline_s, 0.0)
            late_s[late_s < 1e-6 * self.slot_s] = 0.0
        return StartTable(
            task=number,
            way=index,
            nodes=way.nodes,
            power_w=self.power_of(way),
            slots=slots,
            first=first,
            end_s=end_s,
            lateness=task.priority * late_s,
            value=self._value(task, way, start_s, end_s),
        )

    def _value(self, task: QueuedTask, way: Way, start_s: Floats, end_s: Floats) -> Floats:
        weight = task.priority / sum(each.priority for each in self.tasks)
        horizon_s = self.slots * self.slot_s
        if self.objective in ("completion", "makespan"):  # the makespan is one number for all
            return weight * end_s * (1.0 if self.objective == "completion" else TIE)
        found = self.amount(self.objective, way, start_s)
        return found + TIE * self._usual * weight * end_s / horizon_s

    @cached_property
    def _usual(self) -> float:
        """The objective's value if every task runs at its release in its first way."""
        return sum(
            abs(float(self.amount(self.objective, task.ways[0], np.array([task.release_s]))[0]))
            for task in self.tasks
        )

    def amount(self, objective: str, way: Way, start_s: Floats) -> Floats:
        """Return the energy [J], cost [USD] or carbon [gCO2e] of a way by start time."""
        if objective == "energy":
            return np.full(len(start_s), way.energy_j)
        tariff = self.price if objective == "cost" else self.carbon
        fixed = way.fixed_usd if objective == "cost" else way.fixed_gco2e
        return np.asarray(fixed + way.energy_j * tariff.mean(start_s, way.duration_s))

    def total(self, objective: str, starts: Sequence[TaskStart]) -> float:
        """Return the total of a schedule: the sum of energy, cost or carbon, or a time. [SI]"""
        ends_s = [self.end_s(start) for start in starts]
        if objective == "makespan":
            return max(ends_s, default=0.0)
        if objective == "completion":
            weights = [self.tasks[start.task].priority for start in starts]
            return float(np.average(ends_s, weights=weights)) if starts else 0.0
        return sum(
            float(self.amount(objective, self.way(s), np.array([s.slot * self.slot_s]))[0])
            for s in starts
        )

    def lateness(self, starts: Sequence[TaskStart]) -> float:
        """Return the sum of seconds after deadlines times priorities. [s]"""
        return sum(self.tasks[s.task].priority * self.late_s(s) for s in starts)

    def late_s(self, start: TaskStart) -> float:
        """Return by how much a task ends after its deadline. [s]"""
        deadline_s = self.tasks[start.task].deadline_s
        late_s = 0.0 if deadline_s is None else self.end_s(start) - deadline_s
        return late_s if late_s >= 1e-6 * self.slot_s else 0.0

    def way(self, start: TaskStart) -> Way:
        """Return how a task runs."""
        return self.tasks[start.task].ways[start.way]

    def end_s(self, start: TaskStart) -> float:
        """Return when a task ends. [s]"""
        return start.slot * self.slot_s + self.way(start).duration_s
