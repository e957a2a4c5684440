"""Predict the gain of several processes per device from one measured step of a single process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.cost import load_calibration
from wattree.cost.colocation import alternating, barrier_s, station_rate
from wattree.errors import WattreeError
from wattree.strategy import BATCH_RULES, FIXED_GLOBAL


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
        fixed_waiting: The same of `waiting_s` and `host_s`.
        workers: Loader processes that prepare batches ahead; 0 where the process itself loads, in
            `waiting_s` and `host_s`.
        loader_s: Time of one worker for the samples of a step. [s]
        loader_core_s: Core time in that. [s]
        cores_used: Cores that the process keeps busy on average in `device_s`, where the device is
            a CPU: its CPU time over its time.
    """

    samples: float
    device_s: float
    waiting_s: float = 0.0
    host_s: float = 0.0
    gaps_s: float = 0.0
    alternations: int = 1
    fixed_share: float = 0.0
    fixed_waiting: float = 0.0
    workers: int = 0
    loader_s: float = 0.0
    loader_core_s: float = 0.0
    cores_used: float = 1.0

    @property
    def step_s(self) -> float:
        """Time of the step. [s]"""
        own = self.waiting_s + self.host_s + self.gaps_s + self.device_s
        return max(own, self.loader_s / self.workers if self.workers else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesOnDevice:
    """Several processes on one device.

    Attributes:
        rule: `fixed-global`: they share the samples of the measured step; `fixed-per-process`: each
            has as many.
        cores: Of a device that is a CPU: it serves `cores / cores_used` processes at once, and the
            host time and loaders of all. None for an accelerator, whose host has enough cores.
        capacity: Of an accelerator: processes whose kernels run at once as if each were alone (1
            under time slicing).
        contention: Slowdown that each further process at the device brings; None for the constant
            of the shipped calibration, which is that of CPUs or of accelerators.
        reduction_s: Averaging gradients between the processes, exposed. [s]
        workers: Loader processes of all processes together; None: as many as measured.
    """

    processes: int
    rule: str = FIXED_GLOBAL
    cores: int | None = None
    capacity: float = 1.0
    contention: float | None = None
    reduction_s: float = 0.0
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise WattreeError(f"processes: found {self.processes}, expected 1 or more")
        if self.rule not in BATCH_RULES:
            names = ", ".join(BATCH_RULES)
            raise WattreeError(f"rule: found '{self.rule}', expected one of {names}")

    @property
    def batch_share(self) -> float:
        """Samples of a process over those of the measured step."""
        return 1.0 / self.processes if self.rule == FIXED_GLOBAL else 1.0

    def slowdown(self) -> float:
        """Return the slowdown that each further process brings."""
        if self.contention is not None:
            return self.contention
        kind = "gpu" if self.cores is None else "cpu"
        return load_calibration().general(f"colocation_contention_{kind}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedGain:
    """A step of several processes on one device.

    Attributes:
        step_s: Its time. [s]
        gain: Throughput over that of the measured step.
        bound: What the step time is: `process` (the sum of its parts), `loader` or `cores`.
    """

    step_s: float
    samples: float
    gain: float
    bound: str


def predicted_gain(alone: MeasuredStep, shared: ProcessesOnDevice) -> PredictedGain:
    """Return the step of several processes on one device.

    What each process does once a step it does when the others do it, as a step ends for all
    together: waiting passes side by side, work meets. Where gaps part the device's kernels, others'
    kernels fall into them: a closed queue (`wattree.cost.colocation`).

    Args:
        alone: The measured step of one process on an unshared device.

    Raises:
        WattreeError: The measured step takes no time.
    """
    if not alone.step_s > 0:
        raise WattreeError(f"alone: found a step of {alone.step_s} s, expected one that takes time")
    processes, cores, share = shared.processes, shared.cores, shared.batch_share
    device_s = alone.device_s * (alone.fixed_share + (1.0 - alone.fixed_share) * share)
    once = alone.fixed_waiting + (1.0 - alone.fixed_waiting) * share
    host_s = alone.host_s * once
    if cores is not None:
        host_s = float(together_s(host_s, processes=processes, capacity=float(cores)))
    own_s = alone.waiting_s * once + host_s + alone.gaps_s + _at_device_s(alone, device_s, shared)
    bounds = {"process": own_s + shared.reduction_s}
    if count := alone.workers if shared.workers is None else shared.workers:
        bounds["loader"] = alone.loader_s * share * processes / count
    if cores is not None:
        busy = device_s * alone.cores_used + alone.host_s * once + alone.loader_core_s * share
        bounds["cores"] = busy * processes / cores
    bound = max(bounds, key=bounds.__getitem__)
    step_s, samples = bounds[bound], alone.samples * share * processes
    gain = samples / step_s / (alone.samples / alone.step_s)
    return PredictedGain(step_s=step_s, samples=samples, gain=gain, bound=bound)


def _at_device_s(alone: MeasuredStep, device_s: float, shared: ProcessesOnDevice) -> float:
    """Return the time at the device that all share, and the wait for the last of them. [s]"""
    processes, contention = shared.processes, shared.slowdown()
    slots = shared.capacity
    if shared.cores is not None:
        slots = max(shared.cores / alone.cores_used, 1.0)
    if alone.gaps_s <= 0:
        at_device_s = together_s(
            device_s, processes=processes, capacity=slots, contention=contention
        )
        return float(at_device_s)
    found = alternating(
        alone.gaps_s, device_s, processes=processes, capacity=slots, contention=contention
    )
    variance = found.variance_s2(alone.gaps_s, alone.alternations)
    return float(found.residence_s) + float(barrier_s(variance, processes=processes))


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
