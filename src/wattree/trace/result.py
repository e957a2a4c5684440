"""The numbers a user asked for, with what they rest on. One schema for text, JSON and HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from wattree.trace.neighbours import NeighbourEffect

__all__ = [
    "EnergyUse",
    "Evidence",
    "MemoryFix",
    "MemoryUse",
    "Result",
    "SimulationSize",
    "TimeParts",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a number rests on.

    Attributes:
        evidence: `measured`, `fitted`, `pooled` or `datasheet`: the weakest that matters.
        share: Evidence → share of the quantity that rests on it; adds up to 1.
        note: What was assumed, for people.
    """

    evidence: str
    share: Mapping[str, float]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFix:
    """A change that would make the job fit (or fit better)."""

    change: str
    peak_bytes: float
    step_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Peak device memory of the fullest rank. [B]

    Attributes:
        peak_bytes: Peak, with the framework's overhead.
        capacity_bytes: What the device has.
        fits: Whether the peak is within the capacity.
        by_category: Parts of the peak; add up to it.
        fixes: The cheapest changes that help, cheapest in step time first.
    """

    peak_bytes: float
    capacity_bytes: float
    fits: bool
    by_category: Mapping[str, float]
    fixes: tuple[MemoryFix, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeParts:
    """Where the step of the slowest rank goes; the parts add up to the step time. [s]"""

    compute: float
    recomputation: float
    exposed_communication: float
    exposed_materials: float
    bubble: float
    optimizer: float
    other: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyUse:
    """Energy of one step of the whole cluster, node overheads and PUE included. [J]"""

    total: float
    by_stage: Mapping[str, float]
    static: float
    dynamic: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSize:
    """What it took to find out."""

    tasks: int
    events: int
    rank_classes: int
    compile_s: float
    run_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One training step of one job. Units as in the field names; None where it does not apply.

    Attributes:
        model, cluster, strategy: For people: what was simulated.
        ranks: Ranks of the job.
        model_flop_per_step: FLOP that the model needs, no recomputation. [FLOP]
        mfu, hfu: Model FLOP and executed FLOP over time x dense peak of `mfu_precision`.
        average_power_w, peak_power_w: Of all devices and nodes of the job, before PUE. [W]
        cost_usd, carbon_gco2e: Of one step.
        assumptions: What the job did not say and was assumed.
        neighbours: The same step beside other jobs; None if the job has no neighbours. All other
            figures are of the job alone.
    """

    model: str
    cluster: str
    strategy: Mapping[str, Any]
    ranks: int
    step_time_s: float
    samples_per_s: float
    tokens_per_s: float | None
    tokens_per_s_per_device: float | None
    mfu: float
    hfu: float
    mfu_precision: str
    model_flop_per_step: float
    parameters: int
    memory: MemoryUse
    time_s: TimeParts
    energy_j: EnergyUse
    average_power_w: float
    peak_power_w: float
    cost_usd: float | None
    carbon_gco2e: float | None
    provenance: Mapping[str, Evidence]
    simulation: SimulationSize
    assumptions: tuple[str, ...] = field(default=())
    neighbours: NeighbourEffect | None = None

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and lists, ready for JSON."""
        return asdict(self)
