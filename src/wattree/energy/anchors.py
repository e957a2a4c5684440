"""Extrapolate a measured run of a device to lower power limits. Pure functions.

A run that was measured under a high limit (the *anchor*) draws an average power that says how busy
the device was, but not how: half the power may be half the load all the time, or all of it half the
time. A device's runs lie in between: its demand while busy rises with the average as

`demand = rest + (most - rest) * ((power - rest) / (limit - rest))**steadiness`

and the busy share of time follows from the average. While busy, work is a mixture whose clock a
limit takes down (`clocks`); waiting for input or the host keeps its time and its power. So a lower
limit stretches the busy part alone, which is then a larger share of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.energy.clocks import (
    ClockCurve,
    Demand,
    clock_under_limit,
    power_at_clock_w,
    time_at_clock,
)
from wattree.errors import HardwareError


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """How training loads one type of device, independent of the model.

    Attributes:
        rest_w: Power while it waits. [W]
        most_w: Demand of the busiest runs while busy, at full clock. [W]
        steadiness: 1 where less power means less demand, 0 where it means waiting.
        memory_power_share: Share of memory in the demand above leakage.
        math_share: Time of arithmetic over the whole; its square and memory's add up to 1.
        held_share: Share of its limit that the board settles at.
    """

    rest_w: float
    most_w: float
    steadiness: float
    memory_power_share: float
    math_share: float
    held_share: float
    curve: ClockCurve

    def __post_init__(self) -> None:
        shares = (self.memory_power_share, self.math_share, self.held_share)
        if not 0 < self.rest_w < self.most_w or not all(0 <= share <= 1 for share in shares):
            raise HardwareError(
                {"mixture": f"found {self}, expected 0 W < rest < most and shares between 0 and 1"}
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderLimit:
    """Power and time of runs under other limits; arrays of one length.

    Attributes:
        power_w: Average over the run. [W]
        stretch: Time over that of the anchor.
        busy_share: Of the time, that the device is busy.
    """

    power_w: Floats
    stretch: Floats
    busy_share: Floats


def under_limit(
    mixture: Mixture, *, power_w: Floats, anchor_limit_w: Floats, limit_w: Floats
) -> UnderLimit:
    """Return average power and slowdown of runs under limits other than their anchors'.

    Args:
        power_w: Average power of the anchor. [W]
        anchor_limit_w: Limit under which the anchor ran. [W]
        limit_w: Limit to predict for. [W]
    """
    rest_w, most_w = mixture.rest_w, mixture.most_w
    filled = np.clip((power_w - rest_w) / (anchor_limit_w - rest_w), 0.0, 1.0)
    demand_w = np.maximum(rest_w + (most_w - rest_w) * filled**mixture.steadiness, power_w)
    before_w, before = _busy(mixture, demand_w, anchor_limit_w)
    after_w, after = _busy(mixture, demand_w, limit_w)
    above = np.maximum(before_w - rest_w, 1e-9)
    busy = np.clip((power_w - rest_w) / above, 0.0, 1.0)
    # Runs that draw less than rest, or as much as the busy part, are all of one kind.
    waits_w = np.minimum(rest_w, power_w)
    busy_s, waits = busy * after / before, 1.0 - busy
    total = busy_s + waits
    return UnderLimit(
        power_w=(busy_s * after_w + waits * waits_w) / total,
        stretch=total,
        busy_share=busy_s / total,
    )


def _busy(mixture: Mixture, demand_w: Floats, limit_w: Floats) -> tuple[Floats, Floats]:
    """Return power and time of the busy part under a limit, relative to full clock."""
    curve = mixture.curve
    above_w = np.maximum(demand_w - curve.leakage_w, 0.0)
    same = np.ones_like(demand_w)
    demand = Demand(
        clocked_w=above_w * (1.0 - mixture.memory_power_share),
        memory_w=above_w * mixture.memory_power_share,
        math_share=same * mixture.math_share,
        memory_share=same * np.sqrt(1.0 - mixture.math_share**2),
    )
    clock = clock_under_limit(demand, mixture.held_share * limit_w, curve)
    return power_at_clock_w(demand, clock, curve), time_at_clock(demand, clock, curve)
