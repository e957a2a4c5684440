"""Effect of several processes per device on a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocationUse:
    """Several processes on each device, as terms of a closed queue.

    Attributes:
        processes_per_device: Processes on each device.
        batch_rule: `fixed-global` (they share the batch of one) or `fixed-per-process`.
        device_sharing: `mps` (kernels run at once if the device has capacity) or `time-sliced`.
        samples_per_process: Samples per step.
        utilization: Share of the device's capacity used over the step: kernels of all processes,
            weighted with the share that they fill unless time-sliced, and updates.
        host_s: Host time of a process that its kernels do not hide: think time. [s]
        device_s: Time of its kernels on an unshared device: demand. [s]
        waits_s: Time that it waits for kernels of the others. [s]
        barrier_s: Time that the average process waits for the last one at the step's end. [s]
        update_s: Time of averaging gradients on the device, and of all updates. [s]
        fill: Share of the device's compute units that kernels fill, on average.
        contention: Slowdown by each further process on the device.
        memory_bytes_per_process: Memory of a process on the fullest device. [B]
    """

    processes_per_device: int
    batch_rule: str
    device_sharing: str
    samples_per_process: float
    utilization: float
    host_s: float
    device_s: float
    waits_s: float
    barrier_s: float
    update_s: float
    fill: float
    contention: float
    memory_bytes_per_process: float
