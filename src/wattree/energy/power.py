"""Power and energy of a device from its activity. Pure functions.

Static power follows time. Above it, a device that runs kernels draws

`(rated - idle) * (active + math * FLOP/s / peak + (memory + vector) * B/s / bandwidth)`

until it reaches what its board holds under the limit, where the clock gives way ([1], `clocks`).
*vector* is what cores draw for the work that comes with bytes when a network trains (arithmetic of
vectors, addresses, caches); steady matmuls, whose bytes come by the tile, have none of it.
The shares are dimensionless, so that every catalog device has a figure from its datasheet; they
are constants of the calibration, fitted where measurements determine them.

A rank that waits in a collective adds a share of its own: kernels spin. Work that moves bytes alone
(copy engines) has no active part.

References:
    [1] X. Fan, W.-D. Weber, L. A. Barroso, "Power provisioning for a warehouse-sized computer",
        ISCA 2007, has the affine form for servers; A. Chandrakasan, R. Brodersen, "Minimizing
        power consumption in digital CMOS circuits", Proc. IEEE 83(4), 1995, has `P ~ C V**2 f`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wattree.arrays import Flags, Floats
from wattree.energy.clocks import (
    ClockCurve,
    Demand,
    clock_under_limit,
    rests_under_limit,
    time_at_clock,
)
from wattree.errors import HardwareError

#: Of the range from rest to rated, that a limit must leave for work: less would be a device that
#: rests nearly all of the time, far below any limit that boards are sold with.
_LEAST_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePower:
    """Power parameters of one device, by datasheet and calibration.

    Attributes:
        rated_w, idle_w: Rated power and power at rest. [W]
        limit_w: Enforced limit, at most the rated power. [W]
        held_share: Share of its limit that a board settles at.
        active_share: Share of the range from idle to rated of running kernels, without work.
        math_share: Share of the range of matmuls at peak rate and full voltage.
        memory_share: Share of the range of device memory at full bandwidth.
        vector_share: Of the range, that cores draw at full bandwidth for what training does with
            bytes besides moving them.
        spin_share: Share of the range of waiting in a collective.
        waiting_share: Of `active_share`, between kernels that the host is late to launch.
        peak_flop_per_s: Dense peak at the job's precision. [FLOP/s]
        memory_bytes_per_s: Peak bandwidth. [B/s]

    Raises:
        HardwareError: The limit leaves next to nothing above rest.
    """

    rated_w: float
    idle_w: float
    limit_w: float
    held_share: float
    active_share: float
    math_share: float
    memory_share: float
    vector_share: float
    spin_share: float
    waiting_share: float = 0.0
    peak_flop_per_s: float
    memory_bytes_per_s: float
    curve: ClockCurve

    def __post_init__(self) -> None:
        lowest_w = (self.idle_w + _LEAST_SHARE * self.range_w) / self.held_share
        if lowest_w > self.limit_w and self.limit_w < self.rated_w:
            raise HardwareError(
                {
                    "power_limit": f"found {self.limit_w:g} W, which a device that rests at "
                    f"{self.idle_w:g} W cannot keep while it works; use {math.ceil(lowest_w)} W or "
                    "more"
                }
            )

    @property
    def range_w(self) -> float:
        """Return the range from idle to rated power. [W]"""
        return self.rated_w - self.idle_w

    @property
    def most_dynamic_w(self) -> float:
        """Return the maximum power above idle under the limit. [W]"""
        return max(self.held_share * self.limit_w - self.idle_w, 0.0)

    @property
    def spin_w(self) -> float:
        """Return the power above idle while kernels wait in a collective. [W]"""
        return min(self.spin_share * self.range_w, self.most_dynamic_w)

    @property
    def cap(self) -> ClockCap | None:
        """Return the effect of the limit on time; None if it is the rated one."""
        return ClockCap(self) if self.limit_w < self.rated_w else None

    @property
    def steady(self) -> DevicePower:
        """Return the power of the same device under steady matmuls."""
        return replace(self, vector_share=0.0)

    def waiting(self, share: float) -> DevicePower:
        """Return the power of the same device where it waits for its host for a share of the time.

        Args:
            share: Of computing.
        """
        works = 1.0 - share * (1.0 - self.waiting_share)
        return replace(self, active_share=self.active_share * works)

    def asked_w(self, flop: Floats, traffic_bytes: Floats, busy_s: Floats) -> tuple[Floats, Floats]:
        """Return the power above idle that kernels demand: the core's part and the memory's. [W]"""
        lasting = np.maximum(busy_s, 1e-30)
        math = self.math_share * flop / (self.peak_flop_per_s * lasting)
        rate = traffic_bytes / (self.memory_bytes_per_s * lasting)
        core = self.active_share + math + self.vector_share * rate
        return self.range_w * core, self.range_w * self.memory_share * rate

    def board_w(self, flop: Floats, traffic_bytes: Floats, busy_s: Floats) -> Floats:
        """Return the power of the board while kernels run. [W]"""
        core_w, memory_w = self.asked_w(flop, traffic_bytes, busy_s)
        return np.asarray(self.idle_w + np.minimum(core_w + memory_w, self.most_dynamic_w))


class ClockCap:
    """Effect of a power limit below the rated one on the time of each operator."""

    __slots__ = ("power",)

    def __init__(self, power: DevicePower) -> None:
        self.power = power

    def time_s(
        self, time_s: Floats, flop: Floats, traffic_bytes: Floats, memory_s: Floats
    ) -> Floats:
        """Return the time of operators under the limit, from their time under the rated one. [s]

        The clock of each is the highest that fits the limit. Arithmetic follows it; where there
        is none, memory's rate bounds the operator. Below the lowest clock it works and rests.

        Args:
            time_s: Under the rated limit. [s]
            flop: Matrix FLOP of each.
            traffic_bytes: Device-memory bytes. [B]
            memory_s: What moving them takes. [s]
        """
        demand = self._demand(time_s, flop, traffic_bytes, memory_s)
        power = self.power
        limit_w = power.held_share * power.limit_w
        clock = clock_under_limit(demand, limit_w, power.curve)
        stretch = np.maximum(time_at_clock(demand, clock, power.curve), 1.0)
        rests = rests_under_limit(demand, clock, limit_w, rest_w=power.idle_w, curve=power.curve)
        return np.asarray(time_s * stretch * rests)

    def _demand(
        self, time_s: Floats, flop: Floats, traffic_bytes: Floats, memory_s: Floats
    ) -> Demand:
        """Return the power demand of operators at the rated limit's clock, and their bounds."""
        power = self.power
        core_w, memory_w = power.asked_w(flop, traffic_bytes, time_s)
        asked_w = np.maximum(core_w + memory_w, 1e-30)
        held_w = max(power.held_share * power.rated_w - power.idle_w, 0.0)
        granted = np.minimum(held_w / asked_w, 1.0)
        shape = np.broadcast_shapes(time_s.shape, flop.shape, traffic_bytes.shape)
        lasting = np.maximum(time_s, 1e-30)
        memory_share = np.where(flop > 0, np.clip(memory_s / lasting, 0.0, 1.0), 1.0)
        resting_w = power.idle_w - power.curve.leakage_w
        return Demand(
            clocked_w=np.broadcast_to(resting_w + granted * core_w, shape),
            memory_w=np.broadcast_to(granted * memory_w, shape),
            math_share=np.broadcast_to(np.sqrt(1.0 - memory_share**2), shape),
            memory_share=np.broadcast_to(memory_share, shape),
        )


def dynamic_energy_j(
    power: DevicePower,
    *,
    flop: Floats,
    traffic_bytes: Floats,
    busy_s: Floats,
    communicates: Flags,
    copies: Flags,
    active_s: Floats | None = None,
    spins: Floats | None = None,
) -> Floats:
    """Return the energy above idle of each task on one device. [J]

    `min(range * (active + math + memory + vector), held limit - idle) * busy`; of communication
    `spin * range * busy`, of copies `range * memory`.

    Args:
        flop: Matrix FLOP of each task.
        traffic_bytes: Device-memory bytes. [B]
        busy_s: How long it ran. [s]
        copies: Whether a copy engine runs it; its bytes count however long it takes.
        active_s: Of `busy_s`, with a kernel running; all of it if None. [s]
        spins: How many collectives run alongside each, which spin on what the limit leaves.
    """
    # Factors first: arrays are long.
    per_flop_j = power.range_w * power.math_share / power.peak_flop_per_s
    per_share_j = power.range_w / power.memory_bytes_per_s
    per_byte_j = per_share_j * (power.memory_share + power.vector_share)
    spun_j = power.spin_w * busy_s
    asked_j = (power.range_w * power.active_share) * (busy_s if active_s is None else active_s)
    asked_j = asked_j + per_flop_j * flop + per_byte_j * traffic_bytes
    if spins is not None:
        asked_j, spun_j = asked_j + spins * spun_j, spun_j + spins * spun_j
    found = np.minimum(asked_j, power.most_dynamic_w * busy_s)
    if copies.any():
        found = np.where(copies, (per_share_j * power.memory_share) * traffic_bytes, found)
    return np.asarray(np.where(communicates, spun_j, found))
