"""Predict the gain of several processes per device from one measured step of a single process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.cost import load_calibration
from wattree.cost.colocation import alternating, barrier_s, station_rate
from wattree.strategy import FIXED_GLOBAL


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One step of a process on an unshared device, by part.

    The step takes `waiting_s + host_s + gaps_s + device_s`, or `loader_s / workers` if that is
    longer.

    Attributes:
        device_s: Time in which the device (of a CPU: its cores, in products and the like) works for
            the process. [s]
        waiting_s: Once a step, time in which neither works for it: storage, network, sleep. [s]
        host_s: Once a step, time in which one core of the host works for it while the device waits:
            decoding in the main process, Python. [s]
        gaps_s: Host time between the device's kernels, all of them: launches. [s]
        alternations: Kernels (or runs of kernels) separated by these gaps.
        fixed_share: Of `device_s`, what does not shrink with the batch: launches, reading weights,
            the optimizer; in [0, 1].
        workers: Loader processes that prepare batches ahead; 0 where the process itself loads, in
            `waiting_s` and `host_s`.
        loader_s: Time of one worker for the samples of a step. [s]
        loader_core_s: Core time in that. [s]
        cores_used: Cores that the process keeps busy on average in `device_s`, where the device is
            a CPU: its CPU time over its time.
    """

    device_s: float
    waiting_s: float = 0.0
    host_s: float = 0.0
    gaps_s: float = 0.0
    alternations: int = 1
    fixed_share: float = 0.0
    workers: int = 0
    loader_s: float = 0.0
    loader_core_s: float = 0.0
    cores_used: float = 1.0

    @property
    def step_s(self) -> float:
        """Time of the step. [s]"""
        own = self.waiting_s + self.host_s + self.gaps_s + self.device_s
        return max(own, self.loader_s / self.workers if self.workers else 0.0)


def predicted_gain(
    alone: MeasuredStep,
    processes: int,
    *,
    rule: str,
    cores: int | None = None,
    capacity: float = 1.0,
    contention: float | None = None,
    reduction_s: float = 0.0,
) -> float:
    """Return the throughput of several processes on one device over that of the measured step.

    What each process does once a step it does when the others do it, as a step ends for all
    together: waiting passes side by side, work meets. Where gaps part the device's kernels, others'
    kernels fall into them: a closed queue (`wattree.cost.colocation`).

    Args:
        alone: The measured step of one process on an unshared device.
        rule: `fixed-global`: they share the samples of the measured step; `fixed-per-process`: each
            has as many.
        cores: Of a device that is a CPU: it serves `cores / cores_used` processes at once, and the
            host time and loaders of all. None for an accelerator, whose host has enough cores.
        capacity: Of an accelerator: processes whose kernels run at once as if each were alone (1
            under time slicing).
        contention: Slowdown that each further process at the device brings; None for the constant
            of the shipped calibration, which is that of CPUs or of accelerators.
        reduction_s: Averaging gradients between the processes, exposed. [s]
    """
    share = 1.0 / processes if rule == FIXED_GLOBAL else 1.0
    if contention is None:
        kind = "gpu" if cores is None else "cpu"
        contention = load_calibration().general(f"colocation_contention_{kind}")
    device_s = alone.device_s * (alone.fixed_share + (1.0 - alone.fixed_share) * share)
    host_s = alone.host_s * share
    bounds_s = []
    if alone.workers:
        bounds_s.append(alone.loader_s * share * processes / alone.workers)
    if cores is not None:
        busy_s = device_s * alone.cores_used + host_s + alone.loader_core_s * share
        bounds_s.append(busy_s * processes / cores)
        host_s = float(together_s(host_s, processes=processes, capacity=float(cores)))
        capacity = max(cores / alone.cores_used, 1.0)
    if alone.gaps_s > 0:
        found = alternating(
            alone.gaps_s, device_s, processes=processes, capacity=capacity, contention=contention
        )
        variance = found.variance_s2(alone.gaps_s, alone.alternations)
        at_device_s = found.residence_s + barrier_s(variance, processes=processes)
    else:
        at_device_s = together_s(
            device_s, processes=processes, capacity=capacity, contention=contention
        )
    own_s = alone.waiting_s * share + host_s + alone.gaps_s + float(at_device_s) + reduction_s
    return share * processes * alone.step_s / max(own_s, *bounds_s, 0.0)


def together_s(
    demand_s: Floats | float,
    *,
    processes: int,
    capacity: Floats | float = 1.0,
    contention: float = 0.0,
) -> Floats:
    """Return the duration of a demand that all processes issue at the same time. [s]

    Args:
        demand_s: Of one process alone. [s]
        processes, capacity, contention: As for `alternating`.
    """
    rate = station_rate(float(processes), capacity, contention)
    return np.asarray(np.asarray(demand_s) * processes / rate)
