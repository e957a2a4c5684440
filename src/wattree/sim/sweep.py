"""The compiled sweep over the streams of rank classes, from event to event."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Floats, Integers
from wattree.compiled import kernel, part
from wattree.graph import OperatorClass, TaskKind

#: Equal parts of the step, for power over time.
BINS = 256
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


#: From when to when, and parts of the step per second. [s, s, 1/s]
_Span = tuple[float, float, float]
#: A span, and when the whole job waits for materials of later steps.
_Times = tuple[_Span, tuple[float, float]]
#: How often turns come again, how much later each time, and how close moments are one. [1, s, s]
_Again = tuple[int, float, float]
#: What a device may draw above rest, and what it draws while it waits in a collective. [W]
_Watts = tuple[float, float]
#: While nothing runs: how long, what spinning would draw meanwhile, first and last part of the step
#: that it falls in. [s, J]
_Gap = tuple[float, float, int, int]


class Lanes(NamedTuple):
    """Streams with tasks, by class: first lane of each class, rows of each lane.

    Those from `turn_begin` to `turn_end` come several times before the rest.
    """

    of_class: Integers
    begin: Integers
    turn_begin: Integers
    turn_end: Integers
    end: Integers


class Scratch(NamedTuple):
    """Per-lane state of one class: next row and turn, time of the next event, running task, power.

    Of the class itself, what spinning would draw in each part of the step while it is not known
    whether a collective ends the wait.
    """

    at: Integers
    turn: Integers
    until_s: Floats
    role: Integers
    cell: Integers
    power_w: Floats
    spin_j: Floats


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
def _spread(
    energy_j: Floats, power_w: float, from_s: float, to_s: float, per_s: float
) -> tuple[int, int]:
    """Add constant power to the step's intervals that it covers; return the first and last."""
    low = max(min(int(from_s * per_s), BINS - 1), 0)
    high = max(min(int(to_s * per_s), BINS - 1), low)
    if low == high:
        energy_j[low] += power_w * (to_s - from_s)
    else:
        energy_j[low] += power_w * ((low + 1) / per_s - from_s)
        for place in range(low + 1, high):
            energy_j[place] += power_w / per_s
        energy_j[high] += power_w * (to_s - high / per_s)
    return low, high


@part
def _begin(
    stints: NDArray[np.void], lanes: Lanes, again: _Again, first: int, count: int, at: Scratch
) -> float:
    """Place each lane of a class before its first task; return the first start time."""
    next_s = np.inf
    for lane in range(count):
        at.at[lane] = lanes.begin[first + lane]
        at.turn[lane] = 0
        at.role[lane] = _NOTHING
        at.power_w[lane] = 0.0
        _come_again(lanes, again[0], first + lane, lane, at)
        at.until_s[lane] = stints[at.at[lane]].start_s + at.turn[lane] * again[1]
        next_s = min(next_s, at.until_s[lane])
    return next_s


@part
def _come_again(lanes: Lanes, times: int, number: int, lane: int, at: Scratch) -> None:
    """Go back to the begin of a turn whose end is reached, until it has come often enough."""
    if at.at[lane] == lanes.turn_end[number] and at.turn[lane] < times:
        has_rows = lanes.turn_begin[number] < lanes.turn_end[number]
        at.at[lane] = lanes.turn_begin[number]
        at.turn[lane] = at.turn[lane] + 1 if has_rows else times


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
    found: Occupancy, own: int, granted_w: float, span: _Span, starved: tuple[float, float]
) -> float:
    """Add time that the job waits for data of later steps (starvation); return the rest. [s]"""
    hungry_s = max(0.0, min(span[1], starved[1]) - max(span[0], starved[0]))
    if hungry_s > 0.0:
        found.exposed_s[own, _WAITING] += hungry_s
        found.waiting_s[own, _INPUT] += hungry_s
        found.waiting_j[own, _INPUT] += granted_w * hungry_s
    return span[1] - span[0] - hungry_s


@part
def _spin(found: Occupancy, own: int, cell: int, gap: _Gap, spin_j: Floats) -> None:
    """Add the energy of spinning in a gap that a collective ends."""
    found.waiting_j[own, _STRAGGLER] += gap[1]
    found.dynamic_j[own, cell] += gap[1]
    for place in range(gap[2], gap[3] + 1):
        found.power_j[own, place] += spin_j[place]


@part
def _widen(gap: _Gap, idle_w: float, lasts_s: float, span: _Span, spin_j: Floats) -> _Gap:
    """Return a gap extended by an interval with the given spinning power."""
    if idle_w <= 0.0 or lasts_s <= 0.0:
        return gap[0] + lasts_s, gap[1], gap[2], gap[3]
    steady_w = idle_w * (lasts_s / (span[1] - span[0]))  # not while the job is starved
    low, high = _spread(spin_j, steady_w, span[0], span[1], span[2])
    return gap[0] + lasts_s, gap[1] + idle_w * lasts_s, min(gap[2], low), max(gap[3], high)


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
        _spread(found.power_j[own], granted_w, span[0], span[1], span[2])
    if role <= _MATERIALS_ROLE:
        _expose(found, own, shown, role, granted_w, lasts_s)
        return gap
    lasts_s = _starve(found, own, granted_w, span, starved)
    if role == _HOST_ROLE:
        found.exposed_s[own, CLASSES + shown % CLASSES] += lasts_s
        return gap
    found.exposed_s[own, CLASSES + _WAITING] += lasts_s
    return _widen(gap, min(watts[1], watts[0] - granted_w), lasts_s, span, scratch.spin_j)


@part
def _close(found: Occupancy, own: int, cell: int, spins: bool, gap: _Gap, spin_j: Floats) -> None:
    """Add a gap that a task ends; a collective's gap was a wait for the last of its ranks."""
    found.waiting_s[own, _STRAGGLER if spins else _BUBBLE] += gap[0]
    if spins:
        _spin(found, own, cell, gap, spin_j)
    for place in range(gap[2], gap[3] + 1):
        spin_j[place] = 0.0


@part
def _advance(
    stints: NDArray[np.void],
    lanes: Lanes,
    again: _Again,
    span: tuple[int, int],
    scratch: Scratch,
    instant_s: float,
    found: Occupancy,
    own: int,
    gap: _Gap,
    seen: tuple[int, bool],
) -> tuple[float, _Gap, tuple[int, bool]]:
    """Let tasks of a class end and start; return the next event's time, the gap and the flags."""
    at, until_s, role_of, power_w = scratch.at, scratch.until_s, scratch.role, scratch.power_w
    next_s = np.inf
    first_collective, is_pipeline = seen
    for lane in range(span[1]):
        if until_s[lane] <= instant_s + again[2]:
            number = span[0] + lane
            if role_of[lane] != _NOTHING:
                role_of[lane] = _NOTHING
                power_w[lane] = 0.0
                at[lane] += 1
                _come_again(lanes, again[0], number, lane, scratch)
            until_s[lane] = np.inf
            while at[lane] < lanes.end[number]:
                stint, later_s = stints[at[lane]], scratch.turn[lane] * again[1]
                if stint.start_s + later_s > instant_s + again[2]:
                    until_s[lane] = stint.start_s + later_s
                    break
                is_pipeline = is_pipeline or stint.operator_class == _PIPELINE
                spins = stint.kind == _COLLECTIVE
                if first_collective < 0 and spins:
                    first_collective = stint.cell
                if gap[0] > 0.0 and stint.role < _HOST_ROLE:
                    _close(found, own, stint.cell, spins, gap, scratch.spin_j)
                    gap = (0.0, 0.0, BINS, -1)
                if stint.end_s > stint.start_s and stint.end_s + later_s > instant_s:
                    role_of[lane], scratch.cell[lane] = stint.role, stint.cell
                    power_w[lane] = stint.energy_j / (stint.end_s - stint.start_s)
                    until_s[lane] = stint.end_s + later_s
                    break
                at[lane] += 1  # it took no time, so it drew nothing
                _come_again(lanes, again[0], number, lane, scratch)
        next_s = min(next_s, until_s[lane])
    return next_s, gap, (first_collective, is_pipeline)


@kernel
def sweep(
    stints: NDArray[np.void],
    lanes: Lanes,
    again: _Again,
    classes: Integers,
    most_w: Floats,
    spin_w: Floats,
    ends: tuple[float, tuple[float, float]],
    scratch: Scratch,
    found: Occupancy,
) -> None:
    """Sum the activity of the chosen classes, from event to event on their streams."""
    makespan_s, starved = ends
    per_s = BINS / makespan_s if makespan_s > 0.0 else 0.0
    for index in range(len(classes)):
        own = classes[index]
        first, count = lanes.of_class[own], lanes.of_class[own + 1] - lanes.of_class[own]
        watts = (most_w[own], spin_w[own])
        now_s = 0.0
        gap = (0.0, 0.0, BINS, -1)
        seen = (-1, False)
        next_s = _begin(stints, lanes, again, first, count, scratch)
        while True:
            to_s = min(next_s, makespan_s)
            if to_s > now_s:
                times = ((now_s, to_s, per_s), starved)
                gap = _pass(found, own, scratch, count, watts, times, gap)
                now_s = to_s
            if not next_s < np.inf:
                break
            next_s, gap, seen = _advance(
                stints, lanes, again, (first, count), scratch, next_s, found, own, gap, seen
            )
        first_collective, is_pipeline = seen
        found.waiting_s[own, _BUBBLE if is_pipeline else _STRAGGLER] += gap[0]
        if first_collective >= 0 and not is_pipeline:  # who is done waits in that of the next step
            _spin(found, own, first_collective, gap, scratch.spin_j)
        scratch.spin_j[:] = 0.0
