"""Sums of the sweep over a rank class, and power over time; a turn that comes again is added up."""

from __future__ import annotations

from typing import NamedTuple

from wattree.arrays import Floats, Integers
from wattree.compiled import part

#: Equal parts of the step, for power over time.
BINS = 256
#: From when to when, and parts of the step per second. [s, s, 1/s]
Span = tuple[float, float, float]
#: How often a turn comes again, how much later each time; between which moments each class begins
#: one, `(C, 2)`. [1, s, s]
Again = tuple[int, float, Floats]


class Scratch(NamedTuple):
    """State of one class while it is swept.

    Attributes:
        at, until_s, role, cell, power_w: By lane: next row, time of the next event, running task,
            its power.
        counts: How many pieces of the next two are in use, and whether a turn is recorded.
        gap: Spinning (W, from, to) while it is not known whether a collective ends the wait.
        turn: Power that was drawn in a turn that comes again, likewise.
        before: Sums of the class at the begin of that turn.
    """

    at: Integers
    until_s: Floats
    role: Integers
    cell: Integers
    power_w: Floats
    counts: Integers
    gap: Floats
    turn: Floats
    before: tuple[Floats, Floats, Floats, Floats]


class Occupancy(NamedTuple):
    """Sums over a step, of one rank of each class.

    Attributes:
        dynamic_j: Energy above rest that the device grants, `(C, stages * CLASSES)`. [J]
        exposed_s: Time by what is exposed, likewise; a row adds up to the step. [s]
        waiting_s: Time by `Wait`, `(C, 4)`. [s]
        waiting_j: Energy above rest meanwhile, likewise. [J]
        power_j: Energy above rest by part of the step, `(C, BINS)`. [J]
    """

    dynamic_j: Floats
    exposed_s: Floats
    waiting_s: Floats
    waiting_j: Floats
    power_j: Floats


@part
def spread(energy_j: Floats, power_w: float, from_s: float, to_s: float, per_s: float) -> None:
    """Add constant power to the step's intervals that it covers."""
    low = max(min(int(from_s * per_s), BINS - 1), 0)
    high = max(min(int(to_s * per_s), BINS - 1), low)
    if low == high:
        energy_j[low] += power_w * (to_s - from_s)
    else:
        energy_j[low] += power_w * ((low + 1) / per_s - from_s)
        for place in range(low + 1, high):
            energy_j[place] += power_w / per_s
        energy_j[high] += power_w * (to_s - high / per_s)


@part
def draw_over(found: Occupancy, own: int, scratch: Scratch, power_w: float, span: Span) -> None:
    """Add constant power over a span to the class, and to the turn that is recorded."""
    spread(found.power_j[own], power_w, span[0], span[1], span[2])
    if scratch.counts[2]:
        note(scratch.turn, scratch.counts[1], power_w, span)
        scratch.counts[1] += 1


@part
def note(pieces: Floats, place: int, power_w: float, span: Span) -> None:
    """Write down power over a span."""
    pieces[place, 0] = power_w
    pieces[place, 1] = span[0]
    pieces[place, 2] = span[1]


@part
def remember(found: Occupancy, own: int, scratch: Scratch) -> None:
    """Begin to record a turn that comes again."""
    scratch.counts[1], scratch.counts[2] = 0, 1
    before = scratch.before
    for cell in range(len(before[0])):
        before[0][cell] = found.dynamic_j[own, cell]
        before[1][cell] = found.exposed_s[own, cell]
    for wait in range(len(before[2])):
        before[2][wait] = found.waiting_s[own, wait]
        before[3][wait] = found.waiting_j[own, wait]


@part
def repeat(found: Occupancy, own: int, scratch: Scratch, again: Again, per_s: float) -> None:
    """Add the turn that was recorded as often as it comes again."""
    times, period_s, before = again[0], again[1], scratch.before
    for cell in range(len(before[0])):
        found.dynamic_j[own, cell] += times * (found.dynamic_j[own, cell] - before[0][cell])
        found.exposed_s[own, cell] += times * (found.exposed_s[own, cell] - before[1][cell])
    for wait in range(len(before[2])):
        found.waiting_s[own, wait] += times * (found.waiting_s[own, wait] - before[2][wait])
        found.waiting_j[own, wait] += times * (found.waiting_j[own, wait] - before[3][wait])
    for turn in range(1, times + 1):
        later_s = turn * period_s
        for place in range(scratch.counts[1]):
            piece = scratch.turn[place]
            from_s, to_s = piece[1] + later_s, piece[2] + later_s
            spread(found.power_j[own], piece[0], from_s, to_s, per_s)
    for place in range(scratch.counts[0]):  # the gap that is open is that of the last turn
        scratch.gap[place, 1] += times * period_s
        scratch.gap[place, 2] += times * period_s
    scratch.counts[2] = 0
