"""Attention in blocks, while the keys and values of the next block travel.

A ring of `p` ranks computes `p` blocks. In turn `i` each rank attends to the block it has and
sends it on; the next turn begins when both are done (two buffers: the block in use and the one
that arrives). Forward sends keys and values in all turns but the last. Backward sends them again,
and from the second turn on the gradients of the block that the turn before worked on, so that each
block's gradients are home after the last (Liu et al. 2023; Megatron-Core's and Transformer
Engine's `p2p`, which send both in one message). A causal mask leaves each turn the same to do
under the zigzag order; in contiguous order the turn at the diagonal has half a block, every other
one a whole block on some rank, for which the ring waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.lowering.program import (
    CollectiveInstruction,
    CollectiveKind,
    ComputeInstruction,
    Instruction,
    InstructionPhase,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The instructions of one attention in blocks.

    Attributes:
        attention: Index of the compute instruction.
        keys: Of the pass of keys and values.
        gradient: Of the pass of their gradients, in backward; None if nothing needs them.
        backward: Whether it is a backward pass, which meets the blocks in reverse order.
    """

    attention: int
    keys: int
    gradient: int | None
    backward: bool


def rings_of(instructions: Sequence[Instruction]) -> dict[int, Ring]:
    """Return attention instruction → its ring."""
    keys = [
        index
        for index, instruction in enumerate(instructions)
        if isinstance(instruction, CollectiveInstruction)
        and instruction.kind is CollectiveKind.RING_GATHER
    ]
    if not keys:
        return {}
    readers: dict[int, list[int]] = {}
    for index, instruction in enumerate(instructions):
        for before in instruction.depends:
            readers.setdefault(before, []).append(index)
    found = {}
    for index in keys:
        if len(readers.get(index, ())) != 1:
            continue
        attention = readers[index][0]
        later = instructions[attention]
        if not isinstance(later, ComputeInstruction):
            continue
        gradients = [r for r in readers.get(attention, ()) if _carries_gradient(instructions[r])]
        found[attention] = Ring(
            attention=attention,
            keys=index,
            gradient=gradients[0] if gradients else None,
            backward=later.phase is InstructionPhase.INPUT_GRADIENT,
        )
    return found


def _carries_gradient(instruction: Instruction) -> bool:
    reduces = (
        isinstance(instruction, CollectiveInstruction)
        and instruction.kind is CollectiveKind.RING_REDUCE
    )
    return reduces and len(instruction.depends) == 1


def block_shares(ranks: Floats, *, skewed: bool) -> tuple[Floats, Floats]:
    """Return the shares of an attention that its diagonal block and every other block have.

    Args:
        ranks: Of the ring, as many as blocks.
        skewed: A causal mask over contiguous positions: half the diagonal block is visible, and of
            every other block some rank sees all.
    """
    if not skewed:
        return 1.0 / ranks, 1.0 / ranks
    return 0.5 / (ranks - 0.5), 1.0 / (ranks - 0.5)


def buffered_blocks(ranks: Floats, *, gradient: bool) -> Floats:
    """Return the visiting blocks that a rank holds besides its own, gradients included."""
    return np.minimum(ranks - 1.0, 2.0) * (2.0 if gradient else 1.0)
