"""Power and energy of a device, static plus dynamic. Pure functions.

Static power follows time; dynamic energy follows work done. Both scale from the datasheet's
rated and idle power by pooled, dimensionless factors, so every catalogue device has a figure:

- matrix work reaches rated power at 0.70 of peak FLOP/s. Measured: above half of peak, bf16
  products on H200, B200 and GB200 draw 96-98 % of the limit; 0.99 pJ/FLOP on H200 in all.
- device memory at full bandwidth adds 0.9 of the range from idle to rated. Measured: at half of
  bandwidth 320 W on H200, 593 W on B200.
- a rank that waits in a collective adds 0.127 of the range: 150 W against 70 W at rest on H100.

The measurements are the operator power tables of NVIDIA's AI Configurator (2026-08) and H100
training traces (G. Wilkins, 2025-12).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["cap_slowdown", "dynamic_energy_j", "rated_dynamic_w"]

Floats = NDArray[np.float64]

_MATRIX_SHARE_AT_RATED = 0.70
_MEMORY_SHARE = 0.9
_SPIN_SHARE = 0.127
#: Slowdown when a cap binds: time grows as (cap / uncapped power)**-p. Zeus (NSDI 2023): p = 0.70
#: on V100, 0.95 on RTX 6000, 1.5 on A40; SM clock of B300 under caps of 450 to 1,100 W: 0.7.
_CAP_EXPONENT = 0.70


def rated_dynamic_w(tdp_w: float, idle_w: float) -> float:
    """Return the range from rest to rated power. [W]"""
    return tdp_w - idle_w


def dynamic_energy_j(
    *,
    flop: Floats,
    traffic_bytes: Floats,
    busy_s: Floats,
    communicates: NDArray[np.bool_],
    peak_flop_per_s: float,
    memory_bytes_per_s: float,
    tdp_w: float,
    idle_w: float,
) -> Floats:
    """Return the energy above rest of each task on one device. [J]

    `(TDP - idle) * min(flop / (0.70 peak) + 0.9 bytes / bandwidth, busy)`, and for communication
    `(TDP - idle) * 0.127 * busy`.

    Args:
        flop: Matrix FLOP of each task.
        traffic_bytes: Device-memory bytes. [B]
        busy_s: How long it ran. [s]
        communicates: Whether it is communication.
        peak_flop_per_s: Dense peak at the task's precision. [FLOP/s]
        memory_bytes_per_s: Peak memory bandwidth. [B/s]
        tdp_w, idle_w: Rated power (or the cap) and power at rest. [W]
    """
    full_power_s = flop / (_MATRIX_SHARE_AT_RATED * peak_flop_per_s)
    full_power_s = full_power_s + _MEMORY_SHARE * traffic_bytes / memory_bytes_per_s
    computing = np.minimum(full_power_s, busy_s)
    equivalent = np.where(communicates, _SPIN_SHARE * busy_s, computing)
    return np.asarray(rated_dynamic_w(tdp_w, idle_w) * equivalent)


def cap_slowdown(power_limit_w: float | None, tdp_w: float) -> float:
    """Return the factor by which matrix work slows under a power cap, 1 without one.

    `(cap / TDP)**-0.70` below rated power: large products run at the limit, so the clock gives
    way. Memory-bound work does not slow.
    """
    if power_limit_w is None or power_limit_w >= tdp_w:
        return 1.0
    return float((power_limit_w / tdp_w) ** -_CAP_EXPONENT)
