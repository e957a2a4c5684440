"""The compiled sweep over the streams of rank classes, from event to event."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Floats, Integers
from wattree.compiled import kernel, part
from wattree.graph import OperatorClass, TaskKind
from wattree.sim.drawn import (
    BINS,
    Again,
    Occupancy,
    Scratch,
    Span,
    draw_over,
    note,
    remember,
    repeat,
)

#: How many operator classes there are: a cell is `stage * CLASSES + class`.
CLASSES = len(OperatorClass)
_WAITING, _PIPELINE = int(OperatorClass.WAITING), int(OperatorClass.PIPELINE_TRANSFER)


class Wait(IntEnum):
    """What a rank waits for while nothing computes on it."""

    BUBBLE = 0  # another stage of the pipeline
    STRAGGLER = 1  # the last of a collective's ranks, or of the job's
    COMMUNICATION = 2  # its own traffic
    INPUT = 3  # materials


class Role(IntEnum):
    """Role of a task in the time accounting; the first role that applies is the rank's."""

    COMPUTE = 0
    COMMUNICATION = 1
    MATERIALS = 2
    HOST = 3
    BACKGROUND = 4  # materials of later steps


# What kernels compare with: numba takes whole numbers faster than members of enumerations.
_COMPUTE, _MATERIALS_ROLE, _HOST_ROLE = int(Role.COMPUTE), int(Role.MATERIALS), int(Role.HOST)
_NOTHING = len(Role)
_BUBBLE, _STRAGGLER = int(Wait.BUBBLE), int(Wait.STRAGGLER)
_TRAFFIC, _INPUT = int(Wait.COMMUNICATION), int(Wait.INPUT)
_COLLECTIVE = int(TaskKind.COLLECTIVE)


#: A span, and when the whole job waits for materials of later steps.
_Times = tuple[Span, tuple[float, float]]
#: What a device may draw above rest, and what it draws while it waits in a collective. [W]
_Watts = tuple[float, float]
#: While nothing runs: how long, and what spinning would draw meanwhile. [s, J]
_Gap = tuple[float, float]
#: A turn begins where nothing happens for this share of it: sums of times round.
_CLEAR = 1e-10


class Lanes(NamedTuple):
    """Streams with tasks, by class: first lane of each class, rows of each lane."""

    of_class: Integers
    begin: Integers
    end: Integers


@part
def _begin(stints: NDArray[np.void], lanes: Lanes, first: int, count: int, at: Scratch) -> float:
    """Place each lane of a class before its first task; return the first start time."""
    next_s = np.inf
    for lane in range(count):
        at.at[lane] = lanes.begin[first + lane]
        at.role[lane] = _NOTHING
        at.power_w[lane] = 0.0
        at.until_s[lane] = stints[at.at[lane]].start_s
        next_s = min(next_s, at.until_s[lane])
    return next_s


@part
def _shares(compute_w: float, other_w: float, limit_w: float) -> tuple[float, float]:
    """Return the share of its demand that computation gets, and the share of the others."""
    if compute_w + other_w <= limit_w:
        return 1.0, 1.0
    if compute_w > limit_w:
        return limit_w / compute_w, 0.0
    return 1.0, (limit_w - compute_w) / other_w


@part
def _draw(
    found: Occupancy, own: int, lanes: Scratch, count: int, limit_w: float, lasts_s: float
) -> tuple[float, int, int]:
    """Add the energy of running tasks; return their power, and the cell and role of the rank."""
    compute_w, other_w = 0.0, 0.0
    shown, role = -1, _NOTHING
    hungry, last = 0, 0
    for lane in range(count):
        what = lanes.role[lane]
        if what == _NOTHING:
            continue
        if lanes.power_w[lane] > 0.0:
            hungry, last = hungry + 1, lane
            if what == _COMPUTE:
                compute_w += lanes.power_w[lane]
            else:
                other_w += lanes.power_w[lane]
        if what < role:
            shown, role = lanes.cell[lane], what
    compute_share, other_share = _shares(compute_w, other_w, limit_w)
    granted_w = compute_w * compute_share + other_w * other_share
    if granted_w > 0.0:
        if hungry == 1:  # as a rule
            found.dynamic_j[own, lanes.cell[last]] += granted_w * lasts_s
        for lane in range(count if hungry > 1 else 0):
            if lanes.power_w[lane] > 0.0:
                share = compute_share if lanes.role[lane] == _COMPUTE else other_share
                spent_j = lanes.power_w[lane] * share * lasts_s
                found.dynamic_j[own, lanes.cell[lane]] += spent_j
    return granted_w, shown, role


@part
def _expose(
    found: Occupancy, own: int, shown: int, role: int, granted_w: float, lasts_s: float
) -> None:
    """Add time to computation, or to the communication or data loading that it waits for."""
    stage = 1 + role if role < _MATERIALS_ROLE else 0
    found.exposed_s[own, stage * CLASSES + shown % CLASSES] += lasts_s
    if role > _COMPUTE:
        wait = _TRAFFIC if role < _MATERIALS_ROLE else _INPUT
        found.waiting_s[own, wait] += lasts_s
        found.waiting_j[own, wait] += granted_w * lasts_s


@part
def _starve(
    found: Occupancy, own: int, granted_w: float, span: Span, starved: tuple[float, float]
) -> float:
    """Add time that the job waits for data of later steps (starvation); return the rest. [s]"""
    hungry_s = max(0.0, min(span[1], starved[1]) - max(span[0], starved[0]))
    if hungry_s > 0.0:
        found.exposed_s[own, _WAITING] += hungry_s
        found.waiting_s[own, _INPUT] += hungry_s
        found.waiting_j[own, _INPUT] += granted_w * hungry_s
    return span[1] - span[0] - hungry_s


@part
def _spin(found: Occupancy, own: int, cell: int, gap: _Gap, scratch: Scratch, per_s: float) -> None:
    """Add the energy of spinning in a gap that a collective ends."""
    found.waiting_j[own, _STRAGGLER] += gap[1]
    found.dynamic_j[own, cell] += gap[1]
    for place in range(scratch.counts[0]):
        piece = scratch.gap[place]
        draw_over(found, own, scratch, piece[0], (piece[1], piece[2], per_s))


@part
def _widen(gap: _Gap, idle_w: float, lasts_s: float, span: Span, scratch: Scratch) -> _Gap:
    """Return a gap extended by an interval with the given spinning power."""
    if idle_w <= 0.0 or lasts_s <= 0.0:
        return gap[0] + lasts_s, gap[1]
    steady_w = idle_w * (lasts_s / (span[1] - span[0]))  # not while the job is starved
    note(scratch.gap, scratch.counts[0], steady_w, span)
    scratch.counts[0] += 1
    return gap[0] + lasts_s, gap[1] + idle_w * lasts_s


@part
def _pass(
    found: Occupancy,
    own: int,
    scratch: Scratch,
    count: int,
    watts: _Watts,
    times: _Times,
    gap: _Gap,
) -> _Gap:
    """Add the running tasks between two events; return the gap in which nothing runs."""
    span, starved = times
    lasts_s = span[1] - span[0]
    granted_w, shown, role = _draw(found, own, scratch, count, watts[0], lasts_s)
    if granted_w > 0.0:
        draw_over(found, own, scratch, granted_w, span)
    if role <= _MATERIALS_ROLE:
        _expose(found, own, shown, role, granted_w, lasts_s)
        return gap
    lasts_s = _starve(found, own, granted_w, span, starved)
    if role == _HOST_ROLE:
        found.exposed_s[own, CLASSES + shown % CLASSES] += lasts_s
        return gap
    found.exposed_s[own, CLASSES + _WAITING] += lasts_s
    return _widen(gap, min(watts[1], watts[0] - granted_w), lasts_s, span, scratch)


@part
def _close(
    found: Occupancy,
    own: int,
    cell: int,
    spins: bool,
    gap: _Gap,
    scratch: Scratch,
    per_s: float,
) -> None:
    """Add a gap that a task ends; a collective's gap was a wait for the last of its ranks."""
    found.waiting_s[own, _STRAGGLER if spins else _BUBBLE] += gap[0]
    if spins:
        _spin(found, own, cell, gap, scratch, per_s)
    scratch.counts[0] = 0


@part
def _advance(
    stints: NDArray[np.void],
    ends: Integers,
    count: int,
    scratch: Scratch,
    instant: tuple[float, float],
    found: Occupancy,
    own: int,
    gap: _Gap,
    seen: tuple[int, bool],
) -> tuple[float, _Gap, tuple[int, bool]]:
    """Let tasks of a class end and start; return the next event's time, the gap and the flags."""
    at, until_s, role_of, power_w = scratch.at, scratch.until_s, scratch.role, scratch.power_w
    next_s, (instant_s, per_s) = np.inf, instant
    first_collective, is_pipeline = seen
    for lane in range(count):
        if until_s[lane] <= instant_s:
            if role_of[lane] != _NOTHING:
                role_of[lane] = _NOTHING
                power_w[lane] = 0.0
                at[lane] += 1
            until_s[lane] = np.inf
            while at[lane] < ends[lane]:
                stint = stints[at[lane]]
                if stint.start_s > instant_s:
                    until_s[lane] = stint.start_s
                    break
                is_pipeline = is_pipeline or stint.operator_class == _PIPELINE
                spins = stint.kind == _COLLECTIVE
                if first_collective < 0 and spins:
                    first_collective = stint.cell
                if gap[0] > 0.0 and stint.role < _HOST_ROLE:
                    _close(found, own, stint.cell, spins, gap, scratch, per_s)
                    gap = (0.0, 0.0)
                if stint.end_s > instant_s:
                    role_of[lane], scratch.cell[lane] = stint.role, stint.cell
                    power_w[lane] = stint.energy_j / (stint.end_s - stint.start_s)
                    until_s[lane] = stint.end_s
                    break
                at[lane] += 1  # it took no time, so it drew nothing
        next_s = min(next_s, until_s[lane])
    return next_s, gap, (first_collective, is_pipeline)


@kernel
def sweep(
    stints: NDArray[np.void],
    lanes: Lanes,
    classes: Integers,
    most_w: Floats,
    spin_w: Floats,
    makespan_s: float,
    starved: tuple[float, float],
    again: Again,
    scratch: Scratch,
    found: Occupancy,
) -> int:
    """Sum the activity of the chosen classes, from event to event on their streams.

    Times are as listed; turns that come again are added where they do. Returns the classes whose
    turn has.
    """
    per_s = BINS / makespan_s if makespan_s > 0.0 else 0.0
    whole_s = again[0] * again[1]
    repeated = 0
    for index in range(len(classes)):
        own = classes[index]
        first, count = lanes.of_class[own], lanes.of_class[own + 1] - lanes.of_class[own]
        watts = (most_w[own], spin_w[own])
        now_s, later_s, stop_s, turn = 0.0, 0.0, np.inf, 0
        gap = (0.0, 0.0)
        seen = (-1, False)
        scratch.counts[:] = 0
        next_s = _begin(stints, lanes, first, count, scratch)
        while True:
            if turn == 0 and again[0] > 0 and gap[0] == 0.0:  # what was begun before is over
                clear_s, high_s = _CLEAR * again[1], min(next_s, again[2][own, 1])
                if now_s - again[2][own, 0] > clear_s and high_s - now_s > clear_s:
                    stop_s, turn = 0.5 * (now_s + high_s), 1
            to_s = min(next_s, makespan_s - whole_s, stop_s)
            if to_s > now_s:
                times = ((now_s + later_s, to_s + later_s, per_s), starved)
                gap = _pass(found, own, scratch, count, watts, times, gap)
                now_s = to_s
            if to_s == stop_s and turn == 1:
                remember(found, own, scratch)
                stop_s, turn = stop_s + again[1], 2
            elif to_s == stop_s and turn == 2:
                repeat(found, own, scratch, again, per_s)
                later_s, stop_s, turn, repeated = whole_s, np.inf, 3, repeated + 1
            elif next_s < np.inf:
                ends = lanes.end[first : first + count]
                instant = (next_s, per_s)
                next_s, gap, seen = _advance(
                    stints, ends, count, scratch, instant, found, own, gap, seen
                )
            else:
                break
        first_collective, is_pipeline = seen
        found.waiting_s[own, _BUBBLE if is_pipeline else _STRAGGLER] += gap[0]
        if first_collective >= 0 and not is_pipeline:  # who is done waits in that of the next step
            _spin(found, own, first_collective, gap, scratch, per_s)
    return repeated
