"""Pass 5c: turns attention in blocks into rows of a phase, with their uncontended times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.lowering.phase_costs import PhaseCosts
from wattree.lowering.program import ComputeInstruction, Instruction
from wattree.lowering.ring import Ring, block_shares
from wattree.lowering.streams import Stream


@dataclass(frozen=True, slots=True)
class Row:
    """One task of a phase: an instruction, or a part of one.

    Attributes:
        instruction: Index of the instruction.
        share: Share of its work.
        depends: Rows that it waits for.
        hidden: The part of a collective that runs alongside its product.
        latency_share: Latencies of a collective that it has.
        begins, ends: Whether the instruction's temporary memory is taken, and given back, with it.
        entry: Whether it waits for what the block is given; None: as the instruction says.
        collapsed: It stands for all blocks of a ring attention and their transfers.
        slower: Time of its work over what the instruction has as a whole: a product in pieces.
        collective_cpu_shares: Collectives whose share of processors' time it gives up while they
            run alongside it.
    """

    instruction: int
    share: float
    stream: int
    depends: tuple[int, ...]
    hidden: bool
    latency_share: float = 1.0
    begins: bool = True
    ends: bool = True
    entry: bool | None = None
    collapsed: bool = False
    slower: float = 1.0
    collective_cpu_shares: tuple[tuple[int, float], ...] = ()

    def work_s(self, work_s: Floats, processor_s: Floats) -> Floats:
        """Return the time of its work when alone, of one strategy or of several. [s]

        Args:
            work_s: Of every instruction, `(instructions, ...)`. [s]
            processor_s: That collectives take, likewise. [s]
        """
        found = self.share * self.slower * work_s[self.instruction]
        for instruction, share in self.collective_cpu_shares:
            found = found + share * processor_s[instruction]
        return np.asarray(found)


def ring_rows(
    ring: Ring,
    instructions: Sequence[Instruction],
    rows: list[Row],
    at: Mapping[int, int],
    ranks: int,
    *,
    stream: int,
) -> None:
    """Append the blocks of an attention and the transfers between them.

    Args:
        at: Step → row that completes it.
        stream: Of the transfers; in line with the computation, each comes before its block.
    """
    attention = instructions[ring.attention]
    assert isinstance(attention, ComputeInstruction)
    ready = _ready(ring, instructions, at)
    entry = attention.reads_block_input or not ready
    diagonal, other = (
        float(share)
        for share in block_shares(np.array(float(ranks)), skewed=bool(attention.skewed_axes))
    )
    diagonal_at = ranks - 1 if ring.backward else 0
    turn = 1.0 / max(ranks - 1, 1)
    waits = ready
    for index in range(ranks):
        begin = len(rows)
        if index < ranks - 1:
            first = entry and index == 0
            keys = Row(
                ring.keys, turn, stream, waits, hidden=False, latency_share=turn, entry=first
            )
            rows.append(keys)
        if ring.gradient is not None and index > 0:
            late = 1.0 if index == ranks - 1 else 0.0
            rows.append(Row(ring.gradient, turn, stream, waits, hidden=False, latency_share=late))
        moved = range(begin, len(rows))
        rows.append(
            Row(
                ring.attention,
                diagonal if index == diagonal_at else other,
                Stream.COMPUTE,
                waits,
                hidden=False,
                begins=index == 0,
                ends=index == ranks - 1,
                entry=entry and index == 0,
            )
        )
        waits = (len(rows) - 1, *moved)


def collapsed_row(ring: Ring, instructions: Sequence[Instruction], at: Mapping[int, int]) -> Row:
    """Return one row for all blocks and their transfers, for closed forms."""
    ready = _ready(ring, instructions, at)
    return Row(ring.attention, 1.0, Stream.COMPUTE, ready, hidden=False, collapsed=True)


def _ready(
    ring: Ring, instructions: Sequence[Instruction], at: Mapping[int, int]
) -> tuple[int, ...]:
    """Return the rows after which the first turn begins."""
    before = {*instructions[ring.attention].depends, *instructions[ring.keys].depends} - {ring.keys}
    return tuple(sorted({at[instruction] for instruction in before}))


def ring_span_s(ring: Ring, costs: PhaseCosts, *, in_line: bool) -> Floats:
    """Return the time of an attention in blocks, `(n,)`. [s]

    Turn by turn the longer of computing and sending; one after the other where both are in line.
    """
    if in_line:
        instructions = [s for s in (ring.attention, ring.keys, ring.gradient) if s is not None]
        return np.asarray(
            costs.work_s[instructions].sum(axis=0) + costs.latency_s[instructions].sum(axis=0)
        )
    instruction = costs.instructions[ring.attention]
    assert isinstance(instruction, ComputeInstruction)
    ranks, work_s = costs.ring_ranks[ring.attention], costs.work_s
    shares = block_shares(ranks, skewed=bool(instruction.skewed_axes))
    diagonal, other = (share * work_s[ring.attention] for share in shares)
    turns = np.maximum(ranks - 1.0, 1.0)
    keys = (costs.latency_s[ring.keys] + work_s[ring.keys]) / turns
    between = np.maximum(ranks - 2.0, 0.0)
    if not ring.backward:
        span = np.maximum(diagonal, keys) + between * np.maximum(other, keys) + other
    elif ring.gradient is None:
        span = (between + 1.0) * np.maximum(other, keys) + diagonal
    else:
        gradient = work_s[ring.gradient] / turns
        span = np.maximum(other, keys) + between * np.maximum(other, keys + gradient)
        span = span + np.maximum(diagonal, gradient + costs.latency_s[ring.gradient])
    return np.asarray(np.where(ranks > 1, span, work_s[ring.attention]))
