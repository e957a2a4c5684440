"""Processes that share a device, event by event: slow, plain, and none of ours to reuse.

Every process does the same step again and again: once a host time, once a demand on the device,
and between them so many alternations of host and device, each drawn anew. At the device all that
are present get equal shares of what it does. All end a step together.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["SharedDevice", "mean_step_s"]


@dataclass(frozen=True)
class SharedDevice:
    """Processes and their device."""

    processes: int
    alternations: int  # of a step
    think_s: float  # mean, of one alternation
    demand_s: float  # mean, of one alternation
    capacity: float = 1.0
    contention: float = 0.0
    once_think_s: float = 0.0
    once_demand_s: float = 0.0
    is_random: bool = True  # times are exponential, not all the same


def mean_step_s(device: SharedDevice, steps: int = 40, seed: int = 0) -> float:
    """Return the mean time of a step."""
    draw = random.Random(seed)
    return sum(_step_s(device, draw) for _ in range(steps)) / steps


def _step_s(device: SharedDevice, draw: random.Random) -> float:
    queues = [_phases(device, draw) for _ in range(device.processes)]
    left = [queue[0][1] for queue in queues]
    at = [0] * device.processes
    now = 0.0
    while any(place < len(queue) for place, queue in zip(at, queues, strict=True)):
        active = [n for n in range(device.processes) if at[n] < len(queues[n])]
        served = [n for n in active if queues[n][at[n]][0] == "device"]
        speed = 1.0
        if served:
            slower = 1.0 + device.contention * (len(served) - 1)
            speed = min(len(served), device.capacity) / slower / len(served)
        rates = {n: speed if n in served else 1.0 for n in active}
        passed = min(left[n] / rates[n] for n in active)
        now += passed
        for n in active:
            left[n] -= passed * rates[n]
            if left[n] <= 1e-12:
                at[n] += 1
                left[n] = queues[n][at[n]][1] if at[n] < len(queues[n]) else 0.0
    return now


def _phases(device: SharedDevice, draw: random.Random) -> list[tuple[str, float]]:
    def lasting(mean_s: float) -> float:
        return draw.expovariate(1.0 / mean_s) if device.is_random and mean_s > 0 else mean_s

    found = [("host", device.once_think_s)]
    for _ in range(device.alternations):
        found += [("host", lasting(device.think_s)), ("device", lasting(device.demand_s))]
    return [*found, ("device", device.once_demand_s)]
