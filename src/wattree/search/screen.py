"""Closed-form figures of a whole space, and which strategies meet the constraints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.predict import Estimates, Setting, Shared, estimate
from wattree.predict.memory_use import process_bytes
from wattree.search.space import Space
from wattree.strategy import AXES, StrategyOptions

__all__ = ["Constraints", "Screened", "screen"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Strategies estimated at once: bounds memory, and keeps arrays in the processor's caches.
_CHUNK = 20_000

OUT_OF_MEMORY = "out of memory"
OVER_POWER = "over the power cap"
PAST_DEADLINE = "past the deadline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What a strategy must keep to.

    Attributes:
        memory_bytes: Of one device. [B]
        power_cap_w: Highest power of the job's nodes, before PUE; None for no cap. [W]
        step_time_s: Longest step; None for no deadline. [s]
    """

    memory_bytes: float
    power_cap_w: float | None = None
    step_time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """Estimates of every strategy of a space, in its order; shape `(n,)` each.

    Attributes:
        space: What was screened.
        step_time_s, memory_bytes, energy_j: Estimates. [s, B, J]
        average_power_w, peak_power_w: Of the job's nodes, before PUE. [W]
        nodes: Nodes that each strategy uses.
    """

    space: Space
    step_time_s: Floats
    memory_bytes: Floats
    energy_j: Floats
    average_power_w: Floats
    peak_power_w: Floats
    nodes: Integers

    def __len__(self) -> int:
        return len(self.step_time_s)

    def options(self, index: int) -> StrategyOptions:
        """Return one strategy."""
        for group in self.space.groups:
            if index < len(group):
                return group.options(index)
            index -= len(group)
        raise IndexError(index)

    def objective(self, name: str, setting: Setting) -> Floats:
        """Return what the best strategy has least of: s, J, USD or gCO2e per step."""
        cluster = setting.job.cluster
        if name == "time":
            return self.step_time_s
        if name == "cost":
            return self.step_time_s * self.nodes * (cluster.node.price_usd_per_s or 1.0)
        if name == "carbon":
            return self.energy_j * (cluster.site.carbon_gco2e_per_j or 1.0)
        return self.energy_j

    def rejections(self, constraints: Constraints) -> dict[str, NDArray[np.bool_]]:
        """Return reason → strategies that it turns away; each strategy has one reason at most."""
        reasons = {OUT_OF_MEMORY: self.memory_bytes > constraints.memory_bytes}
        if constraints.power_cap_w is not None:
            # No peak is below the average; which peaks are above the cap simulation decides.
            reasons[OVER_POWER] = self.average_power_w > constraints.power_cap_w
        if constraints.step_time_s is not None:
            reasons[PAST_DEADLINE] = self.step_time_s > constraints.step_time_s
        before = np.zeros(len(self), dtype=bool)
        alone = {}
        for reason, broken in reasons.items():
            alone[reason] = broken & ~before
            before |= broken
        return alone


def screen(
    setting: Setting, space: Space, *, progress: Callable[[int], None] | None = None
) -> Screened:
    """Return estimates of every strategy of `space`.

    Args:
        setting: The job.
        space: Its strategies.
        progress: Called with the number of strategies done.
    """
    found: list[Estimates] = []
    nodes = []
    done = 0
    shared = Shared()
    for group in space.groups:
        for first in range(0, len(group), _CHUNK):
            index = np.arange(first, min(first + _CHUNK, len(group)))
            degrees = group.degrees.take(index)
            found.append(estimate(setting, group.switches, degrees, shared=shared))
            ranks = np.prod([degrees.axes[axis] for axis in AXES], axis=0)
            nodes.append(-(-ranks // setting.job.cluster.node.devices))
            done += len(index)
            if progress is not None:
                progress(done)
    tensor_bytes = _joined([chunk.tensor_bytes for chunk in found])
    device = setting.job.cluster.node.device
    step_time_s = _joined([chunk.step_time_s for chunk in found])
    energy_j = _joined([chunk.energy_j for chunk in found])
    return Screened(
        space=space,
        step_time_s=step_time_s,
        memory_bytes=process_bytes(tensor_bytes, setting.calibration, device),
        energy_j=energy_j,
        average_power_w=energy_j / setting.job.cluster.site.pue / np.maximum(step_time_s, 1e-12),
        peak_power_w=_joined([chunk.peak_power_w for chunk in found]),
        nodes=_joined(nodes).astype(np.int64),
    )


def _joined(parts: list[NDArray[np.float64]]) -> Floats:
    return np.concatenate(parts) if parts else np.zeros(0)
