"""Processes that share a device, as a closed queue with one station and think time.

Each of `q` processes alternates between its host, which no one shares (think time `Z`), and the
device (service demand `D`, its time alone). The device is a station of processor sharing whose rate
depends on how many are at it: with `k` of them it works `min(k, c) / (1 + gamma (k - 1))` times as
fast as for one. `c` is its capacity: 1 where kernels of several processes never run at once (time
slicing), the inverse of the share of the device that kernels fill where they do (MPS), the cores
over the threads of a process on a CPU. `gamma` is what each further process costs the others.

Such a network has a product form, whatever the distribution of `Z` and `D` (Baskett, Chandy, Muntz
and Palacios, Journal of the ACM 22(2), 1975): the probability of `k` processes at the device is

    p(k) ~ Z^(q-k) / (q-k)! * D^k / prod_(i<=k) rate(i)

from which the throughput `X = sum p(k) rate(k) / D` and, by Little's law, the residence at the
device `R = q / X - Z`. With `c = 1` and `gamma = 0` that is mean-value analysis of the machine
repairman: `R_q = D (1 + Q_(q-1))` (Reiser and Lavenberg, Journal of the ACM 27(2), 1980).

A step ends for all processes together, as gradients are averaged, so what each does once a step it
does when the others do it: once-a-step demands meet in full, once-a-step think times
pass side by side.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wattree.arrays import Floats


def station_rate(present: Floats | float, capacity: Floats | float, contention: float) -> Floats:
    """Return the station's speed-up over that with one process.

    Args:
        present: Processes at it, 1 or more.
        capacity: How many it serves as if each were alone, 1 or more.
        contention: Slowdown that each further process brings.
    """
    slowdown = 1.0 + contention * (np.asarray(present) - 1.0)
    return np.asarray(np.minimum(present, capacity) / slowdown)


def capacity_of_fill(fill: Floats | float) -> Floats:
    """Return the capacity of a device that one process fills to a share in (0, 1]."""
    return np.asarray(1.0 / np.clip(fill, 1e-3, 1.0))


class Alternating(NamedTuple):
    """Processes that alternate often between host and device, arrays of one shape.

    Attributes:
        residence_s: How long a process is at the device in one step (or part of it). [s]
        busy: Share of the most that the device can do which it does, in [0, 1].
    """

    residence_s: Floats
    busy: Floats

    def variance_s2(self, think_s: Floats | float, alternations: Floats | float) -> Floats:
        """Variance of a process's time as seen by a barrier. [s^2]

        Times of one alternation are taken to be as random as exponential ones. The busier the
        device, the faster it is for the last, who have it for themselves: what matters shrinks with
        the device's idle share. Against event-by-event plays of 20 to 200 alternations
        (`tests/cost/shared_device.py`; 2 to 6 processes, any load) a step with that is 4.6 % off
        (root mean square), without it 9.6 %.

        Args:
            think_s: As given to `alternating`. [s]
            alternations: How many there are in it.
        """
        own = np.asarray(think_s) ** 2 + self.residence_s**2
        return np.asarray(own / np.maximum(alternations, 1.0) * (1.0 - self.busy) ** 2)


def alternating(
    think_s: Floats | float,
    demand_s: Floats | float,
    *,
    processes: int,
    capacity: Floats | float = 1.0,
    contention: float = 0.0,
) -> Alternating:
    """Return the queueing model of processes that alternate often between host and device.

    Args:
        think_s: Time of a process off the device, `Z`. [s]
        demand_s: Its time at the device when alone, `D`. [s]
        processes: `q`, 1 or more.
        capacity: Of the station, 1 or more; broadcasts with the times.
        contention: Slowdown that each further process brings.
    """
    think, demand, slots = np.broadcast_arrays(
        *(np.asarray(value, dtype=np.float64) for value in (think_s, demand_s, capacity))
    )
    whole = np.maximum(think + demand, 1e-300)
    z, d = think / whole, demand / whole
    # Weights of k = 0..q at the device, from the full end: no division by a think time of zero.
    served, throughput = np.ones_like(z), np.zeros_like(z)
    total, fastest = z**processes / math.factorial(processes), np.ones_like(z)
    for k in range(1, processes + 1):
        rate = station_rate(float(k), slots, contention)
        served = served * d / rate
        weight = served * z ** (processes - k) / math.factorial(processes - k)
        total = total + weight
        throughput = throughput + weight * rate
        fastest = np.maximum(fastest, rate)
    throughput = np.maximum(throughput, 1e-300)
    # X = throughput / (total D); R = q / X - Z.
    residence = np.where(demand > 0, processes * total * d / throughput - z, 0.0) * whole
    return Alternating(
        residence_s=np.maximum(residence, demand),
        busy=np.where(
            demand > 0, np.minimum(throughput / np.maximum(total * fastest, 1e-300), 1.0), 0.0
        ),
    )


@lru_cache(maxsize=128)
def expected_maximum(count: int) -> float:
    """Return the expected maximum of this number of independent standard normal values."""
    if count == 1:
        return 0.0
    width, most = 0.005, 9.0
    at = np.arange(-most, most, width) + width / 2
    below = 0.5 * (1.0 + np.array([math.erf(value / math.sqrt(2.0)) for value in at]))
    # E max = integral of 1 - F^n above 0 less that of F^n below 0.
    power = below**count
    return float(np.sum(np.where(at > 0, 1.0 - power, -power)) * width)


def barrier_s(variance_s2: Floats | float, *, processes: int) -> Floats:
    """Return the mean wait of a process for the last one at the end of a step. [s]

    A step of many independent alternations is nearly normal, so the last of `q` is
    `expected_maximum(q)` standard deviations behind the mean.

    Args:
        variance_s2: Of the time of one process, `alternations * variance of one`. [s^2]
        processes: `q`.
    """
    return np.asarray(expected_maximum(processes) * np.sqrt(np.asarray(variance_s2)))


def local_reduction_bytes(gradient_bytes: Floats, *, processes: int) -> Floats:
    """Return the memory traffic of averaging gradients between the processes of a device. [B]

    Of each slice `q` gradients are read and their sum is written; then each of the others reads the
    sum and writes its own: `(q + 1) + 2 (q - 1)` times their size.

    Args:
        gradient_bytes: Gradients of one process. [B]
        processes: `q`.
    """
    return np.asarray(gradient_bytes * (3.0 * processes - 1.0 if processes > 1 else 0.0))
