"""CPU time that collectives take from the computation they overlap with, on CPUs.

A collective by itself takes the time that was measured of it, in which processors mostly wait.
Beside computation they do not: what they spend on it is lost to what they compute. So the first
operator that runs while a collective is under way gives up that time. One that nothing runs
alongside costs no more.
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
        rows: In the order in which streams play them.
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
    """Return the rows that a row waits for, one through another."""
    found: set[int] = set()
    left = list(rows[at].depends)
    while left:
        index = left.pop()
        if index not in found:
            found.add(index)
            left += rows[index].depends
    return found
