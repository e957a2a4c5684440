"""Overlap of a block's collectives with its matmuls, and the resulting time of a phase.

A collective that overlap hides is cut in two: the visible share stays in line, the rest runs
alongside the matmul it feeds (gathers) or drains (scatters).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattree.arrays import Floats
from wattree.cost.rates import Rates
from wattree.lowering.collective_costs import AROUND
from wattree.lowering.movement import Overlap
from wattree.lowering.phase_costs import PhaseCosts
from wattree.lowering.program import (
    CollectiveInstruction,
    CollectiveKind,
    ComputeInstruction,
    Instruction,
)
from wattree.lowering.ring import Ring, rings_of
from wattree.lowering.ring_rows import Row, collapsed_row, ring_rows, ring_span_s
from wattree.lowering.streams import Stream
from wattree.strategy import AxisRole

#: Collectives cut into pieces by default, and those cut only if the number of pieces is given.
_CUT = frozenset({CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER})
_REDUCED = frozenset({CollectiveKind.ALL_REDUCE})
_DRAINS = frozenset({CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE})
#: Kinds of collectives between operators, and the streams that they have of their own.
_KINDS = (
    ("experts", Stream.EXPERT),
    ("context", Stream.CONTEXT),
    ("tensor", Stream.TENSOR),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelining:
    """Visible shares of collectives that can run alongside matmuls.

    Attributes:
        tensor_exposed_share: Of gathers and scatters over tensor axes; 1 keeps them whole.
        context_exposed_share: Of key/value gathers over context axes, if nothing says more.
        in_line: Kinds (`tensor`, `context`, `experts`) on the stream of the computation.
        cuts_reductions: All-reduces are cut like gathers and scatters.
        slower: Time of a matmul in pieces over that of the whole.
        shares_processors: Collectives take time of the processors that compute.
    """

    tensor_exposed_share: float
    context_exposed_share: float
    in_line: frozenset[str] = frozenset()
    cuts_reductions: bool = False
    slower: float = 1.0
    shares_processors: bool = False

    @classmethod
    def of(cls, rates: Rates, overlap: Overlap) -> Pipelining:
        """Return the visible shares and streams.

        A matmul cut into `k` pieces hides all but one piece of its traffic: the first piece of
        what is gathered has to be there before it starts, the last of what is scattered leaves
        when it is done.

        Args:
            rates: With the share of the pieces that software makes by itself.
            overlap: Whether tensor-parallel traffic is hidden at all, in how many pieces, and what
                runs on the stream of the computation.
        """
        pieces = overlap.tensor_pieces
        share = rates.tensor_exposed_share if pieces is None else 1.0 / pieces
        return cls(
            tensor_exposed_share=share if overlap.tensor else 1.0,
            context_exposed_share=0.0,
            in_line=overlap.in_line,
            cuts_reductions=pieces is not None,
            slower=1.0 / rates.slice_rate,
            shares_processors=rates.exchange_s > 0 or rates.exchange_s_per_byte > 0,
        )

    def share(self, instruction: CollectiveInstruction) -> float:
        """Return the visible share of `instruction`."""
        if instruction.kind not in _CUT and not (
            self.cuts_reductions and instruction.kind in _REDUCED
        ):
            return 1.0
        if instruction.exposed or self.stream(instruction) == Stream.COMPUTE:
            return 1.0
        if instruction.roles == {AxisRole.TENSOR}:
            return self.tensor_exposed_share
        return self.context_exposed_share if instruction.roles == {AxisRole.CONTEXT} else 1.0

    def hidden_latencies(self, share: float) -> float:
        """Return the latencies in the hidden part of a collective with visible share `share`.

        Each piece its own on processors, whose threads have to come to their turn; on accelerators
        those of pieces in flight are hidden by one another.
        """
        return 1.0 / share - 1.0 if self.shares_processors else 0.0

    def stream(self, instruction: Instruction) -> int:
        """Return the stream an instruction runs on."""
        if isinstance(instruction, ComputeInstruction):
            return Stream.COMPUTE
        roles = instruction.roles
        number = 0 if AxisRole.EXPERT in roles else 1 if AxisRole.CONTEXT in roles else 2
        kind, own = _KINDS[number]
        return Stream.COMPUTE if kind in self.in_line else own


def phase_rows(
    instructions: Sequence[Instruction],
    pipelining: Pipelining,
    ring_ranks: Mapping[int, int] | None = None,
) -> list[Row]:
    """Return the tasks of a phase: every instruction, hidden parts alongside their matmuls.

    Args:
        pipelining: Visible shares of collectives.
        ring_ranks: Attention in blocks → how many; None: one row for all blocks.
    """
    partner = hidden_under(instructions, pipelining)
    rings = rings_of(instructions)
    passes = {ring.keys: ring for ring in rings.values()}
    passes |= {ring.gradient: ring for ring in rings.values() if ring.gradient is not None}
    rows: list[Row] = []
    at: dict[int, int] = {}  # instruction → row that completes it
    waiting: dict[int, list[int]] = {}  # product → hidden gathers its readers must await
    for index, instruction in enumerate(instructions):
        if index in passes:
            # Keys come with their attention's rows, and gradients are home when it is done.
            if index == passes[index].gradient:
                last = at[passes[index].attention]
                at[index] = last if ring_ranks is None else last - 1
            continue
        if index in rings:
            stream = pipelining.stream(instructions[rings[index].keys])
            _add_ring(rings[index], instructions, rows, at, ring_ranks, stream=stream)
            continue
        depends = tuple(at[d] for d in instruction.depends)
        late = tuple(row for d in instruction.depends for row in waiting.get(d, ()))
        share = 1.0
        if isinstance(instruction, CollectiveInstruction) and index in partner:
            share = pipelining.share(instruction)
            product = partner[index]
            if product < index:  # drains a product: its hidden part starts with the product
                starts = rows[at[product]].depends
                pieces = pipelining.hidden_latencies(share)
                rows.append(
                    Row(index, 1 - share, pipelining.stream(instruction), starts, True, pieces)
                )
                depends = (*depends, len(rows) - 1)
        rows.append(Row(index, share, pipelining.stream(instruction), depends + late, False))
        at[index] = len(rows) - 1
        if index in partner and partner[index] > index:
            pieces = pipelining.hidden_latencies(share)
            rows.append(
                Row(index, 1 - share, pipelining.stream(instruction), depends, True, pieces)
            )
            waiting.setdefault(partner[index], []).append(len(rows) - 1)
    if pipelining.slower > 1.0 and partner:
        cut = set(partner.values())
        rows = [replace(r, slower=pipelining.slower) if r.instruction in cut else r for r in rows]
    return with_collective_cpu_time(rows, instructions) if pipelining.shares_processors else rows


def _add_ring(
    ring: Ring,
    instructions: Sequence[Instruction],
    rows: list[Row],
    at: dict[int, int],
    ring_ranks: Mapping[int, int] | None,
    *,
    stream: int,
) -> None:
    """Append the rows of a ring attention; `at` maps an instruction to its last row."""
    if ring_ranks is not None:
        ring_rows(ring, instructions, rows, at, ring_ranks[ring.attention], stream=stream)
    else:
        rows.append(collapsed_row(ring, instructions, at))
    at[ring.attention] = len(rows) - 1


def hidden_under(instructions: Sequence[Instruction], pipelining: Pipelining) -> dict[int, int]:
    """Return collective → the matmul it can be pipelined with."""
    partner: dict[int, int] = {}
    for index, instruction in enumerate(instructions):
        if isinstance(instruction, CollectiveInstruction):
            if pipelining.share(instruction) >= 1.0:
                continue
            if instruction.kind in _DRAINS and instruction.depends:
                before = instruction.depends[0]
                if isinstance(instructions[before], ComputeInstruction):
                    partner[index] = before
        else:
            for before in instruction.depends:
                earlier = instructions[before]
                if (
                    isinstance(earlier, CollectiveInstruction)
                    and earlier.kind is CollectiveKind.ALL_GATHER
                    and pipelining.share(earlier) < 1.0
                ):
                    partner.setdefault(before, index)
    return partner


def phase_span_s(costs: PhaseCosts, pipelining: Pipelining) -> Floats:
    """Return the time of a phase alone, shape `(n,)`: its streams in order. [s]"""
    count = costs.work_s.shape[1]
    free: dict[int, Floats] = {}
    ends: list[Floats] = []
    zero = np.zeros(count)
    rings = rings_of(costs.instructions)
    for row in phase_rows(costs.instructions, pipelining):
        start = free.get(row.stream, zero)
        for before in row.depends:
            start = np.maximum(start, ends[before])
        latency = row.latency_share * costs.latency_s[row.instruction]
        if row.collapsed:
            ring = rings[row.instruction]
            in_line = pipelining.stream(costs.instructions[ring.keys]) == Stream.COMPUTE
            end = start + ring_span_s(ring, costs, in_line=in_line)
        else:
            end = start + latency + row.work_s(costs.work_s, costs.processor_s)
        free[row.stream] = end
        ends.append(end)
    span = zero
    for end in free.values():
        span = np.maximum(span, end)
    return span


def with_collective_cpu_time(rows: Sequence[Row], instructions: Sequence[Instruction]) -> list[Row]:
    """Return the rows of a phase, each with the collectives whose CPU time slows it, on CPUs.

    A collective alone takes its measured time, in which processors mostly wait. When it overlaps
    computation, the first operator that runs while it is in flight is extended by the CPU time that
    it uses.

    Args:
        rows: In stream order.
    """
    found = list(rows)
    before = _computed_before(rows)
    for index, row in enumerate(rows):
        instruction = instructions[row.instruction]
        if row.stream == Stream.COMPUTE or not isinstance(instruction, CollectiveInstruction):
            continue
        if (
            instruction.kind in AROUND
        ):  # its attention is cut into turns, by the closed form into none
            continue
        for at in range(before[index] + 1, len(rows)):
            if rows[at].stream != Stream.COMPUTE:
                continue
            if index not in _ancestors(rows, at):
                share = (row.instruction, row.share)
                found[at] = replace(
                    found[at], collective_cpu_shares=(*found[at].collective_cpu_shares, share)
                )
            break
    return found


def _computed_before(rows: Sequence[Row]) -> list[int]:
    """Return for each row the last row of computation that it waits for, -1 for none."""
    last: list[int] = []
    for row in rows:
        own = [
            max(before, last[before]) if rows[before].stream == Stream.COMPUTE else last[before]
            for before in row.depends
        ]
        last.append(max(own, default=-1))
    return last


def _ancestors(rows: Sequence[Row], at: int) -> set[int]:
    """Return the transitive dependencies of a row."""
    found: set[int] = set()
    left = list(rows[at].depends)
    while left:
        index = left.pop()
        if index not in found:
            found.add(index)
            left += rows[index].depends
    return found
