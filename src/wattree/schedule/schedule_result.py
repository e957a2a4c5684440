"""The result of `schedule`: start and placement of each job, next to a plain queue and a bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from wattree.arrays import Floats
from wattree.schedule.problem import above_rest_w
from wattree.schedule.queue import JobQueue
from wattree.shown import Shown
from wattree.trace.plain import as_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledJob:
    """One job of a schedule.

    Attributes:
        nodes: Numbers of its nodes.
        power_limit_w: Of each device; None: the rated power. [W]
        strategy: In a few words.
        start_s, end_s: From the queue's beginning. [s]
        end_interval_s: When it ends with 80 % probability, if it starts then. [s]
        deadline_s, late_s: By when it should end, and by how much it does not. [s]
        late_because: Why it cannot end in time; empty if it does.
        slowdown: Of its steps by those that it meets on the fabric, at least 1.
        energy_j: PUE included. [J]
        power_w: On average. [W]
        cost_usd, carbon_gco2e: Of it; None where the cluster has no price, or no intensity.
    """

    name: str
    nodes: tuple[int, ...]
    power_limit_w: float | None
    strategy: str
    start_s: float
    end_s: float
    end_interval_s: tuple[float, float]
    deadline_s: float | None
    late_s: float
    late_because: str
    slowdown: float
    energy_j: float
    power_w: float
    cost_usd: float | None
    carbon_gco2e: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals of a schedule.

    Attributes:
        energy_j: Of all jobs, PUE included; nodes at rest are not counted. [J]
        cost_usd, carbon_gco2e: The same; None where unknown.
        makespan_s: When the last job ends. [s]
        completion_s: When jobs end in the mean, by priority. [s]
        lateness_s: After deadlines, times priorities, added up. [s]
        late: Jobs that miss their deadline.
    """

    energy_j: float
    cost_usd: float | None
    carbon_gco2e: float | None
    makespan_s: float
    completion_s: float
    lateness_s: float
    late: int

    def of(self, objective: str) -> float | None:
        """Return the figure that an objective minimizes."""
        names = {"energy": "energy_j", "cost": "cost_usd", "carbon": "carbon_gco2e"}
        found: float | None = getattr(self, names.get(objective, f"{objective}_s"))
        return found


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QueueSchedule(Shown):
    """Result of scheduling a queue.

    Attributes:
        jobs: By their start.
        first_come: Of a plain queue on the same predictions.
        least: No schedule has less of the objective, if it is as little late. [SI]
        least_lateness_s: No schedule is less late. [s]
        gap: Share by which a better schedule may undercut this one.
        slot_s: Starts are multiples of it. [s]
        idle_w: That a node draws at rest, with its switches and PUE. [W]
        switch_w: Part of it that jobs on one node do not include. [W]
        refused: Of each job the numbers of nodes that it cannot have, and why.
        notes: What the figures rest on.
    """

    queue: JobQueue
    jobs: tuple[ScheduledJob, ...]
    totals: Totals
    first_come: Totals
    least: float
    least_lateness_s: float
    gap: float
    slot_s: float
    idle_w: float
    switch_w: float
    refused: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]

    @property
    def meets_deadlines(self) -> bool:
        """Whether no job is late."""
        return not self.totals.late

    def records(self) -> list[dict[str, Any]]:
        """Return the jobs, ordered by start."""
        return [as_plain(job) for job in self.jobs]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "queue": self.queue.source,
            "objective": self.queue.objective.value,
            "nodes": self.queue.cluster.nodes,
            "power_cap_w": self.queue.power_cap_w,
            "jobs": self.records(),
            "totals": asdict(self.totals),
            "first_come": asdict(self.first_come),
            "bound": {"objective": self.least, "lateness_s": self.least_lateness_s},
            "gap": self.gap,
            "slot_s": self.slot_s,
            "refused": {name: list(reasons) for name, reasons in self.refused.items()},
            "notes": list(self.notes),
        }


def busy(schedule: QueueSchedule, times_s: Floats) -> tuple[Floats, Floats]:
    """Return the number of busy nodes and the power of all nodes at given times. [1], [W]"""
    nodes, idle_w = np.zeros(len(times_s)), schedule.idle_w
    power_w = np.full(len(times_s), schedule.queue.cluster.nodes * idle_w)
    for job in schedule.jobs:
        runs = (times_s >= job.start_s) & (times_s < job.end_s)
        nodes += len(job.nodes) * runs
        power_w += above_rest_w(job.power_w, len(job.nodes), idle_w, schedule.switch_w) * runs
    return nodes, power_w
