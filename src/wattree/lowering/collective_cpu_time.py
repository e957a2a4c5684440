"""CPU time that collectives take from the computation they overlap with, on CPUs.

A collective alone takes its measured time, in which processors mostly wait.
When it overlaps computation, the CPU time that it uses is lost to the computation. So the first
operator that runs while a collective is in flight is extended by that time. A collective that
overlaps nothing costs no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wattree.lowering.program import CollectiveInstruction, CollectiveKind, Instruction
from wattree.lowering.rows import Row
from wattree.lowering.streams import Stream

_AROUND = frozenset({CollectiveKind.RING_GATHER, CollectiveKind.RING_REDUCE})


def with_collective_cpu_time(rows: Sequence[Row], instructions: Sequence[Instruction]) -> list[Row]:
    """Return the rows of a phase, each with the collectives whose CPU time slows it.

    Args:
        rows: In stream order.
        instructions: Of the phase.
    """
    found = list(rows)
    before = _computed_before(rows)
    for index, row in enumerate(rows):
        instruction = instructions[row.instruction]
        if row.stream == Stream.COMPUTE or not isinstance(instruction, CollectiveInstruction):
            continue
        if (
            instruction.kind in _AROUND
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
