"""Memory overhead of a process besides its tensors, by source.

Tensors are counted. On top come the allocator's surplus (a share of the tensors and a constant),
the driver's context, which belongs to the architecture, and the buffers of communicators, which
belong to the strategy's groups. `validation/memory_fit.py` fits what no source tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.cost import Calibration, Software
from wattree.cost.communicator import communicator_bytes
from wattree.hardware import Device, Node
from wattree.lowering.setting import Setting
from wattree.strategy import AxisRole, Strategy

if TYPE_CHECKING:
    from wattree.accounts.executed import ExecutedStep


def groups_bytes(degrees: Mapping[str, Integers | int], node: Node, setting: Setting) -> Floats:
    """Return what the communicators of a rank hold, for degrees that are numbers or arrays. [B]"""
    if not setting.has_experts:  # then `ep` is one more axis of replicas
        degrees = {**degrees, "dp": degrees["dp"] * degrees["ep"], "ep": 1}
    rings, messages = communicator_bytes(degrees, node)
    return rings * setting.calibration.general("memory_communicators") + messages


def strategy_groups_bytes(strategy: Strategy, node: Node, setting: Setting) -> Floats:
    """Return what the communicators of a rank of each of a strategy's meshes hold, `(parts,)`. [B]

    Those of two meshes meet in one group besides, which counts as the pipeline that they are.
    """
    found = [
        groups_bytes({**part.degrees, AxisRole.PIPELINE.value: part.mesh.pipeline}, node, setting)
        for part in strategy.parts
    ]
    return np.concatenate(found)


def class_process_bytes(step: ExecutedStep) -> Floats:
    """Return what a process of each rank class takes at its peak, `(C,)`. [B]"""
    peaks = step.trace.peak_bytes
    found = np.zeros(len(peaks))
    for number, pool in enumerate(step.cluster.pools):
        mine = step.compilation.class_pools == number
        of_parts = strategy_groups_bytes(step.strategy, pool.node, step.setting)
        groups = of_parts[step.compilation.class_parts[mine]]
        found[mine] = process_bytes(peaks[mine], step.setting, pool.node.device, groups)
    return found


def overhead_parts(
    tensor_bytes: float, setting: Setting, device: Device, groups: float
) -> dict[str, float]:
    """Return what comes on top of tensors, by category; arguments as for `process_bytes`. [B]"""
    return {
        "allocator": float(reserved_bytes(np.array(tensor_bytes), setting)) - tensor_bytes,
        "context": context_bytes(device, setting.software, setting.calibration),
        "communication": groups,
    }


def context_bytes(device: Device, software: Software, calibration: Calibration) -> float:
    """Return the context of the driver, with the kernels that a process loads. [B]"""
    needed = calibration.device(device, "memory_context_bytes")
    if not software.loads_all_kernels:
        return needed
    return calibration.own(device, "memory_all_kernels_bytes", needed)


def fragmentation(allocator: str, calibration: Calibration) -> float:
    """Return the fragmentation of an allocator, as a share of live tensors."""
    item = "" if allocator == "caching" else f"_{allocator}"
    return calibration.general(f"memory_fragmentation{item}")


#: What the allocator holds of the smallest model at most: cuBLAS's workspace on Hopper and one
#: segment of blocks below 10 MiB (PyTorch, notes on CUDA semantics; `wattree.sim.allocator`). [B]
_OF_SMALLEST = float((32 + 20) << 20)


def reserved_bytes(tensor_bytes: Floats, setting: Setting) -> Floats:
    """Return what the allocator holds for a peak of live tensors. [B]

    A compiler that lays out memory (`bfc`) counts the workspaces of libraries among the tensors.
    """
    calibration, allocator = setting.calibration, setting.software.allocator
    kept = tensor_bytes * (1 + fragmentation(allocator, calibration))
    if allocator != "bfc":
        # No more than as much again is lost to rounding and to blocks that do not fit.
        most = tensor_bytes + _OF_SMALLEST
        kept = kept + np.minimum(calibration.general("memory_reserved_bytes"), most)
    return np.asarray(kept)


def process_bytes(
    tensor_bytes: Floats, setting: Setting, device: Device, groups: Floats | float
) -> Floats:
    """Return what the driver counts for a peak of live tensors. [B]

    Args:
        tensor_bytes: Peak of live tensors. [B]
        setting: The job's: its constants and its software's allocator.
        groups: What its communicators hold. [B]
    """
    context = context_bytes(device, setting.software, setting.calibration)
    return np.asarray(reserved_bytes(tensor_bytes, setting) + context + groups)
