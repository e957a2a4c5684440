"""Device sharing between processes, and the share of a device that one process's kernels fill.

Under NVIDIA's Multi-Process Service kernels of several processes run at once where they leave room.
Thread blocks are spread over the compute units first, so a kernel of fewer blocks than units leaves
whole units to others; one of more blocks is taken to leave nothing, as the blocks of all would only
take turns on every unit. That is cautious: a unit holds several blocks, and their waits overlap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wattree.arrays import Floats
from wattree.cost.calibration import Calibration
from wattree.hardware import Node

#: Elements that a thread block of an elementwise kernel takes: 128 threads of 4 each (PyTorch,
#: aten/src/ATen/native/cuda/thread_constants.h: `num_threads`, `thread_work_size`).
BLOCK_ELEMENTS = 512.0
#: Elements for which PyTorch starts another thread on a CPU (aten/src/ATen/Parallel.h, or
#: TensorIterator.h: `at::internal::GRAIN_SIZE`).
CORE_ELEMENTS = 32768.0
#: Output tile of small products, and the least part of a sum that a library cuts off to fill the
#: units: 4 ramps of 20 (`cost.convolution`).
_TILE, _PART = 64.0, 80.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSharing:
    """Effect of device sharing on its processes.

    Attributes:
        units: Compute units, or cores of a CPU.
        block_elements: Elements of an elementwise kernel that occupy one of them.
        contention: Slowdown that each further process at the device brings.
        launch_fill: Share of the device that a launch takes which the device waits for: one core
            of a CPU, nothing of an accelerator.
        host_cores: Cores of its node's host over the node's devices; of a CPU no limit, as its
            cores are the device.
        processes: How many share it.
        overlaps: Whether their kernels run at once where they leave room.
    """

    units: int
    block_elements: float
    contention: float
    launch_fill: float
    host_cores: float = math.inf
    processes: int = 1
    overlaps: bool = True

    @property
    def slowdown(self) -> float:
        """Slowdown while all processes use the device."""
        return 1.0 + self.contention * (self.processes - 1)

    @property
    def host_slowdown(self) -> float:
        """Slowdown of host work where there are more processes than cores.

        A process that waits for its device polls (`cudaDeviceScheduleSpin` and `Yield`, which CUDA
        chooses by default), so each takes a core all the time.
        """
        return max(1.0, self.processes / self.host_cores)

    def of(self, processes: int, *, in_turn: bool) -> DeviceSharing:
        """Return the sharing model for this number of processes.

        Args:
            processes: How many.
            in_turn: Their kernels never overlap, unless the device is a CPU: its cores run what
                they are given.
        """
        return replace(self, processes=processes, overlaps=self.launch_fill > 0 or not in_turn)


def sharing_of(node: Node, calibration: Calibration) -> DeviceSharing:
    """Return the sharing model of several processes on a device of a node."""
    device = node.device
    is_cpu = device.kind == "cpu"
    pooled = calibration.general(f"colocation_contention_{'cpu' if is_cpu else 'gpu'}")
    return DeviceSharing(
        units=device.compute_units,
        block_elements=CORE_ELEMENTS if is_cpu else BLOCK_ELEMENTS,
        contention=calibration.own(device, "colocation_contention", pooled),
        launch_fill=1.0 / device.compute_units if is_cpu else 0.0,
        host_cores=math.inf if is_cpu else node.host.cpu_cores / node.devices,
    )


def matmul_fill(m: Floats, n: Floats, k: Floats, groups: Floats, units: int) -> Floats:
    """Return the share of the units that an (m x k) by (k x n) matmul fills, in (0, 1].

    Args:
        m, n, k, groups: Shape.
        units: Of the device.
    """
    tiles = np.ceil(m / _TILE) * np.ceil(n / _TILE) * groups
    parts = np.maximum(np.floor(k / _PART), 1.0)
    return np.asarray(np.minimum(tiles * parts / units, 1.0))


def element_fill(elements: Floats, sharing: DeviceSharing) -> Floats:
    """Return the share of the units that an elementwise kernel fills, in (0, 1]."""
    blocks = np.maximum(np.ceil(elements / sharing.block_elements), 1.0)
    return np.asarray(np.minimum(blocks / sharing.units, 1.0))
