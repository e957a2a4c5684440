"""Effect of several processes per device on a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocationUse:
    """Several processes on each device, as terms of a closed queue.

    Attributes:
        processes_per_device: How many.
        batch_rule: `fixed-global` (they share the batch of one) or `fixed-per-process`.
        device_sharing: `mps` (kernels run at once where they leave room) or `time-sliced`.
        samples_per_process: Of a step.
        utilization: Share of what the device can do at once that is used over the step: kernels
            of all processes, weighted with what they fill unless they take turns, and updates.
        host_s: Host time of a process that none of its kernels hides: think time. [s]
        device_s: Its kernels, if it were alone: demand. [s]
        waits_s: What it waits for kernels of the others, and they for it. [s]
        barrier_s: What the average process waits for the last one at the end of the step. [s]
        update_s: Averaging gradients on the device, and the updates of all processes. [s]
        fill: Share of the device's compute units that kernels fill, on average.
        contention: Slowdown that each further process at the device brings.
        memory_bytes_per_process: On the fullest device. [B]
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
