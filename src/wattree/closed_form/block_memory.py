"""Memory of one block in closed form: what it keeps, and what it needs for a moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wattree.lowering.costs import (
    BlockCosts,
    PhaseCosts,
)
from wattree.lowering.program import CollectiveStep, ComputeStep, Scale
from wattree.lowering.storage import Storage

__all__ = ["block_memory", "gathered_bytes", "staged_bytes"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def block_memory(costs: BlockCosts) -> tuple[Floats, Floats]:
    """Return what one block keeps, and the most it needs beyond that while it runs. [B]"""
    program = costs.program
    zero = np.zeros(costs.saved_bytes.shape[1])
    kept = zero
    made: dict[int, Floats] = {}  # forward step → what it makes and keeps
    again = zero
    for row, tensor in zip(costs.saved_bytes, program.saved, strict=True):
        if not program.backward:
            continue
        share = tensor.share if tensor.recomputed else 0.0
        kept, again = kept + (1.0 - share) * row, again + share * row
        at = max(tensor.producer, 0)
        made[at] = made.get(at, zero) + (1.0 - share) * row
    forward = _most_held([costs.forward], made, {}) - kept
    if not program.backward:
        return kept, np.maximum(forward, 0.0)
    return kept, np.maximum(forward, _backward_most_held(costs, again))


def _backward_most_held(costs: BlockCosts, again: Floats) -> Floats:
    """Return the most that backward holds beyond what forward kept. [B]"""
    program = costs.program
    before = len(costs.recomputation.steps)
    last_of = {
        step.path: before + index
        for index, step in enumerate(program.backward)
        if isinstance(step, ComputeStep)
    }
    dropped: dict[int, Floats] = {}
    end = before + len(program.backward) - 1
    for row, tensor in zip(costs.saved_bytes, program.saved, strict=True):
        at = last_of.get(tensor.consumer, end)
        dropped[at] = dropped.get(at, 0.0 * row) + row
    return _most_held([costs.recomputation, costs.backward], {0: again}, dropped)


def _most_held(
    phases: Sequence[PhaseCosts], made: Mapping[int, Floats], dropped: Mapping[int, Floats]
) -> Floats:
    """Return the most that steps in order hold above where they began. [B]

    What is gathered stays to the end; what an operator needs for itself goes with it.

    Args:
        phases: One after another, steps numbered through.
        made: Step → what it allocates for longer.
        dropped: Step → what goes when it is done.
    """
    held = np.zeros(phases[0].work_s.shape[1])
    most = held
    number = 0
    for phase in phases:
        for index, step in enumerate(phase.steps):
            held = held + made.get(number, 0.0)
            if isinstance(step, CollectiveStep):
                held = held + phase.transient_bytes[index]
                most = np.maximum(most, held)
            else:
                most = np.maximum(most, held + phase.transient_bytes[index])
            held = held - dropped.get(number, 0.0)
            number += 1
    return most


def gathered_bytes(storage: Storage, scale: Scale) -> Floats:
    """Return the parameters of a block that are gathered for its use, whole. [B]"""
    total = np.zeros(len(storage.parameters))
    for sync in storage.sync:
        if sync.gather_axes:
            total = total + sync.gather_bytes * (scale.degree(sync.gather_axes) > 1)
    return total


def staged_bytes(storage: Storage, scale: Scale) -> Floats:
    """Return the gradients of a block that are whole only while they are reduced. [B]"""
    total = np.zeros(len(storage.parameters))
    for sync in storage.sync:
        if sync.is_staged:
            total = total + sync.reduce_bytes * (scale.degree(sync.scatter_axes) > 1)
    return total
