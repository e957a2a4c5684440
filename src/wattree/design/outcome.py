"""Outcome of a point: figures of every workload, and their totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wattree.design.points import DesignPoint
from wattree.trace.plain import as_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOutcome:
    """One workload on the cluster of a point, under the best strategy that was found.

    Attributes:
        feasible: Whether any strategy meets the constraints.
        reason: Why none does; None where one does.
        strategy: The strategy in one line; empty where there is none.
        strategy_json: The same as a job file writes it.
        devices: How many it uses.
        step_time_s: Of one step. [s]
        time_s, energy_j, cost_usd, carbon_gco2e: To the target; None where unknown. Where no
            strategy meets the limit of one, the least of that one.
        average_power_w, peak_power_w: Of the nodes, before PUE. [W]
        memory_bytes: Of the fullest device. [B]
        time_parts_s: Heading → time of a step; empty where it was not simulated. [s]
        energy_by_stage_j: Stage of the account → energy of a step. [J]
        simulated: Whether it was executed, or is of the closed form.
        notes: What a reader must know: that capacity is ignored, that the function is changed.
        not_offered: Strategies that were not tried because the job's software cannot run them.
        traffic_bytes: Memory tier → bytes to and from it in a step, where they are known. [B]
        interval: Some of the figures above → what they lie between with 80 % probability.
    """

    workload: str
    feasible: bool
    reason: str | None = None
    strategy: str = ""
    strategy_json: Mapping[str, Any] = field(default_factory=dict)
    devices: int = 0
    step_time_s: float | None = None
    time_s: float | None = None
    energy_j: float | None = None
    cost_usd: float | None = None
    carbon_gco2e: float | None = None
    average_power_w: float | None = None
    peak_power_w: float | None = None
    memory_bytes: float | None = None
    time_parts_s: Mapping[str, float] = field(default_factory=dict)
    energy_by_stage_j: Mapping[str, float] = field(default_factory=dict)
    simulated: bool = False
    notes: tuple[str, ...] = ()
    not_offered: tuple[str, ...] = ()
    traffic_bytes: Mapping[str, float] = field(default_factory=dict)
    interval: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def step_time_low_s(self) -> float | None:
        """Lower end of the interval of the step time; None where it is unknown. [s]"""
        return self.interval["step_time_s"][0] if "step_time_s" in self.interval else None

    @property
    def step_time_high_s(self) -> float | None:
        """Upper end of the interval of the step time; None where it is unknown. [s]"""
        return self.interval["step_time_s"][1] if "step_time_s" in self.interval else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a point.

    Attributes:
        feasible: Whether all workloads and all constraints of the study are met.
        reason: Why not; None where they are.
        workloads: In the order of the study; fewer where the cluster itself cannot be.
        totals: Some of those of `OBJECTIVE_TOTALS` → figure.
        seconds: Time of the evaluation; not part of comparisons. [s]
    """

    point: DesignPoint
    feasible: bool
    reason: str | None = None
    workloads: tuple[WorkloadOutcome, ...] = ()
    totals: Mapping[str, float] = field(default_factory=dict)
    seconds: float = field(default=0.0, compare=False)


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Return plain dictionaries and lists, ready for JSON."""
    return dict(as_plain(outcome))


def outcome_from_json(plain: Mapping[str, Any]) -> Outcome:
    """Return the outcome from a mapping of `outcome_json`.

    Raises:
        KeyError, TypeError: It is none of those mappings.
    """
    workloads = tuple(
        WorkloadOutcome(
            **{
                **entry,
                "notes": tuple(entry["notes"]),
                "not_offered": tuple(entry["not_offered"]),
                "interval": {name: tuple(ends) for name, ends in entry.get("interval", {}).items()},
            }
        )
        for entry in plain["workloads"]
    )
    rest = {key: plain[key] for key in ("feasible", "reason", "totals", "seconds")}
    return Outcome(point=DesignPoint(**plain["point"]), workloads=workloads, **rest)
