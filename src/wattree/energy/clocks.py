"""Clocks under a power limit: voltage and power by clock, and the effect of a limit on time.

Clocks are relative to the one that the same work runs at under the rated limit. Power at clock `f`:

`P(f) = leak + clocked * f * v(f)**2 + memory * t(1) / t(f)`

where `v(f) = max(floor, 1 - slope * (1 - f))` is the voltage over that at `f = 1` (a floor, then a
line), `clocked` what switches with the core's clock and `memory` what device memory draws, which
has a clock of its own. Time: `t(f) = sqrt(math**2 / f**2 + (memory * max(1, f_m / f))**2)`: the
arithmetic follows the clock, memory does not, until below `f_m` the core asks for too little.

Communication and hosts keep their time; both are left out here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.errors import HardwareError

#: Halvings of the range of clocks: to 1e-9 of it, below any constant's accuracy.
_HALVINGS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockCurve:
    """Voltage of a device by clock.

    Attributes:
        floor_voltage: Lowest voltage, over that at clock 1.
        voltage_slope: Rise of the relative voltage over that of the relative clock, above the
            floor.
        lowest: Lowest relative clock that a limit brings a device to.
        memory_clock: Relative clock below which the core cannot ask for the memory's whole rate.
        leakage_w: Power that no clock changes. [W]
    """

    floor_voltage: float
    voltage_slope: float
    lowest: float
    memory_clock: float
    leakage_w: float

    def __post_init__(self) -> None:
        shares = (self.floor_voltage, self.lowest)
        if not all(0.0 < share <= 1.0 for share in shares) or self.voltage_slope < 0:
            raise HardwareError(
                {
                    "clocks": f"found {self}, expected floor voltage and lowest clock above 0 and "
                    "at most 1, and a slope of 0 or more"
                }
            )

    def voltage(self, clock: Floats) -> Floats:
        """Return the voltage at a relative clock, relative to that at 1."""
        return np.maximum(self.floor_voltage, 1.0 - self.voltage_slope * (1.0 - clock))


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Power demand and bounds of work at relative clock 1; arrays of one length.

    Attributes:
        clocked_w: Power that follows the clock. [W]
        memory_w: Power of device memory, which follows its rate. [W]
        math_share, memory_share: Times of arithmetic and of memory, over the whole. Their squares
            add up to 1.
    """

    clocked_w: Floats
    memory_w: Floats
    math_share: Floats
    memory_share: Floats


def time_at_clock(demand: Demand, clock: Floats, curve: ClockCurve) -> Floats:
    """Return the time of work at a relative clock, relative to that at 1."""
    asked = demand.memory_share * np.maximum(1.0, curve.memory_clock / clock)
    return np.hypot(demand.math_share / clock, asked)


def power_at_clock_w(demand: Demand, clock: Floats, curve: ClockCurve) -> Floats:
    """Return the power of work at a relative clock. [W]"""
    core = demand.clocked_w * clock * curve.voltage(clock) ** 2
    return np.asarray(
        curve.leakage_w + core + demand.memory_w / time_at_clock(demand, clock, curve)
    )


def rests_under_limit(
    demand: Demand, clock: Floats, limit_w: float, *, rest_w: float, curve: ClockCurve
) -> Floats:
    """Return the time of work with the pauses needed below the lowest clock, relative to without.

    Where a clock draws more than the limit, the device works and rests in turn, so that it keeps
    the limit on average: `(P(f) - rest) / (limit - rest)`; 1 where the clock fits.

    Args:
        clock: That it runs at, from `clock_under_limit`.
        limit_w: What the board holds on average, above `rest_w`. [W]
        rest_w: Power at rest. [W]
    """
    above_w = power_at_clock_w(demand, clock, curve) - rest_w
    return np.asarray(np.maximum(above_w / (limit_w - rest_w), 1.0))


def clock_under_limit(demand: Demand, limit_w: Floats | float, curve: ClockCurve) -> Floats:
    """Return the highest relative clock whose power is within a limit; at most 1.

    Where not even the lowest clock fits, that clock; see `rests_under_limit`.
    """
    power_w = curve.leakage_w + demand.clocked_w + demand.memory_w
    limit_w = np.broadcast_to(np.asarray(limit_w, dtype=np.float64), power_w.shape)
    clock = np.ones_like(power_w)
    over = power_w > limit_w
    if not over.any():
        return clock
    mine = Demand(
        clocked_w=demand.clocked_w[over],
        memory_w=demand.memory_w[over],
        math_share=demand.math_share[over],
        memory_share=demand.memory_share[over],
    )
    low = np.full(int(over.sum()), curve.lowest)
    high = np.ones_like(low)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        fits = power_at_clock_w(mine, middle, curve) <= limit_w[over]
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    clock[over] = low
    return clock
