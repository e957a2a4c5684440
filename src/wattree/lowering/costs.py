"""Symbolic programs → seconds, FLOP and bytes, for one strategy or arrays of them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from wattree.cost import Software
from wattree.cost.rates import Rates
from wattree.lowering.colocation import SharedWork
from wattree.lowering.groups import GroupShapes
from wattree.lowering.host_stretch import stretch_to_host
from wattree.lowering.memory_tier_access import kept_accesses, kept_rows, stored_whole
from wattree.lowering.phase_costs import PhaseCosts, phase_costs
from wattree.lowering.program import BlockProgram, Scale

__all__ = ["BlockCosts", "block_costs"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCosts:
    """Costs of a block's phases and the bytes it keeps, arrays over `n` strategies.

    `shared` is what the device is to its process where others share it, else None.
    """

    program: BlockProgram
    forward: PhaseCosts
    recomputation: PhaseCosts
    backward: PhaseCosts
    saved_bytes: Floats  # (saved tensors, n), those on the device
    handed_bytes: Floats  # (tensors handed on, n)
    shared: SharedWork | None = None
    far_kept_bytes: Floats | None = None  # (n,), kept in expanded memory that the device reaches
    far_traffic_bytes: Floats | None = None  # (n,), to and from it in one micro-batch


def block_costs(
    program: BlockProgram, scale: Scale, placement: GroupShapes, rates: Rates, software: Software
) -> BlockCosts:
    """Return the costs of one block under `scale`."""
    saved_bytes = _saved_bytes(program, scale, rates, software)
    far: Floats | None = None
    moved: tuple[Mapping[int, Floats], ...] = ({}, {}, {})
    whole = np.ones(1)
    if rates.expanded is not None:
        far = kept_rows(program, saved_bytes, rates.expanded)
        saved_bytes, moved = saved_bytes - far, kept_accesses(program, far)
        whole = stored_whole(program, scale)
    phases = program.forward, program.recomputation, program.backward
    (forward, far_forward), (again, far_again), (backward, far_backward) = (
        phase_costs(steps, scale, placement, rates, software, kept=kept, whole=whole)
        for steps, kept in zip(phases, moved, strict=True)
    )
    # Threads of one interpreter launch forwards in turn; backward has a thread of C++ by device.
    shared = [
        stretch_to_host([forward], rates, scale, launches=scale.launches),
        stretch_to_host([again, backward], rates, scale),
    ]
    return BlockCosts(
        program=program,
        forward=forward,
        recomputation=again,
        backward=backward,
        saved_bytes=saved_bytes,
        handed_bytes=np.array([scale.value(s) for _, s in program.handed]).reshape(
            len(program.handed), len(scale.micro_batch)
        )
        * rates.element_bytes,
        shared=_added(shared),
        far_kept_bytes=None if far is None else far.sum(axis=0),
        far_traffic_bytes=None if far is None else far_forward + far_again + far_backward,
    )


def _added(parts: Sequence[SharedWork | None]) -> SharedWork | None:
    found = [part for part in parts if part is not None]
    return reduce(SharedWork.plus, found) if found else None


def _saved_bytes(program: BlockProgram, scale: Scale, rates: Rates, software: Software) -> Floats:
    rows = np.zeros((len(program.saved), len(scale.micro_batch)))
    for index, tensor in enumerate(program.saved):
        width = rates.element_bytes
        if tensor.kind == "logits":
            width = software.loss_bytes_per_logit
        elif tensor.kind == "scores":
            # Softmax, dropout mask and output: 2 + 1 + 2 bytes (Korthikanti 2022, eq. 1).
            width = 0.0 if software.fused_attention else 5.0
        elif tensor.mask_bytes > 0:
            width = tensor.mask_bytes
        rows[index] = scale.value(tensor.size) * width
    return rows
