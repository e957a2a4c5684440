"""What a process holds besides its tensors: how much, and which part of it has a source.

How much is fitted to measured memory (`validation/memory_fit.py`). Buffers of communicators and the
context are told from that as far as their sources go, and never take more than was fitted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattree.compiler import Compilation
from wattree.cost import Calibration
from wattree.cost.communicator import Communicator, communicator_bytes, context_bytes
from wattree.hardware import Device
from wattree.lowering.program import CollectiveKind, CollectiveStep

Floats = NDArray[np.float64]

#: A stage sends to the next and the previous one.
_NEIGHBOURS = 2


def communicators(compilation: Compilation) -> tuple[Communicator, ...]:
    """Return the process groups that a rank communicates in, one per set of mesh axes."""
    topology = compilation.topology
    exchanged = {
        step.axes
        for program in compilation.program.programs
        for step in (*program.forward, *program.backward)
        if isinstance(step, CollectiveStep) and step.kind is CollectiveKind.ALL_TO_ALL
    }
    found = [_group(compilation, axes, exchanges=axes in exchanged) for axes in compilation.axes]
    if topology.mesh.degree("pp") > 1:
        found.append(_group(compilation, ("pp",), exchanges=True, most_peers=_NEIGHBOURS))
    return tuple(group for group in found if group.ranks > 1)


def _group(
    compilation: Compilation,
    axes: tuple[str, ...],
    *,
    exchanges: bool,
    most_peers: int | None = None,
) -> Communicator:
    shape = compilation.topology.group(axes)
    peers = int(shape.inside[0]) - 1
    return Communicator(
        name=" x ".join(axes),
        ranks=int(shape.ranks[0]),
        peers_inside=peers if most_peers is None else min(peers, most_peers),
        exchanges=exchanges,
    )


def overhead_parts(
    overhead_bytes: float,
    *,
    allocator_bytes: float,
    groups: tuple[Communicator, ...],
    device: Device,
) -> dict[str, float]:
    """Return the parts of what is fitted, by category; they add up to it. [B]

    Args:
        overhead_bytes: All that the process holds besides tensors. [B]
        allocator_bytes: Fragmentation as the calibration has it. [B]
        groups: Process groups of the rank.
        device: The rank's.
    """
    left = overhead_bytes
    parts = {}
    for category, known in (
        ("allocator", allocator_bytes),
        ("context", context_bytes(device)),
        ("communication", sum(communicator_bytes(group, device) for group in groups)),
    ):
        parts[category] = min(known, left)
        left -= parts[category]
    return parts | {"overhead": left}


def reserved_bytes(tensor_bytes: Floats, calibration: Calibration) -> Floats:
    """Return what the caching allocator holds for a peak of live tensors. [B]"""
    kept = tensor_bytes * (1 + calibration.general("memory_fragmentation"))
    return np.asarray(kept + calibration.general("memory_reserved_bytes"))


def process_bytes(tensor_bytes: Floats, calibration: Calibration, device: Device) -> Floats:
    """Return what the driver counts for a peak of live tensors. [B]"""
    context = calibration.device(device, "memory_context_bytes")
    return np.asarray(reserved_bytes(tensor_bytes, calibration) + context)
