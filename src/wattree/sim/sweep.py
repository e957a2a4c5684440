"""The compiled sweep over what the streams of rank classes do, from event to event."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.compiled import kernel, part
from wattree.graph import OperatorClass, TaskKind

__all__ = ["BINS", "CLASSES", "Lanes", "Occupancy", "Role", "Scratch", "Wait", "sweep"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

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
    """What a task is to time; what stands first is what the rank is said to do."""

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


class Lanes(NamedTuple):
    """Streams that have tasks, by class: first lane of each class, rows of each lane."""

    of_class: Integers
    begin: Integers
    end: Integers


class Scratch(NamedTuple):
    """Of each lane of one class: next row, when something happens to it, what runs, its power.

    Of the class itself, what spinning would draw in each part of the step while it is not known
    whether a collective ends the wait.
    """

    at: Integers
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
    """Add steady power to the parts of the step that it falls in; return the first and last."""
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


@kernel
def sweep(
    stints: NDArray[np.void],
    lanes: Lanes,
    classes: Integers,
    most_w: Floats,
    spin_w: Floats,
    makespan_s: float,
    starved: tuple[float, float],
    scratch: Scratch,
    found: Occupancy,
) -> None:
    """Add up what chosen classes do, from one event on their streams to the next."""
    at, until_s, power_w = scratch.at, scratch.until_s, scratch.power_w
    role_of, cell_of = scratch.role, scratch.cell
    maybe_j = scratch.spin_j
    per_s = BINS / makespan_s if makespan_s > 0.0 else 0.0
    for index in range(len(classes)):
        own = classes[index]
        first, count = lanes.of_class[own], lanes.of_class[own + 1] - lanes.of_class[own]
        limit_w = most_w[own]
        now_s, gap_s = 0.0, 0.0
        gap_j, gap_low, gap_high = 0.0, BINS, -1
        first_collective = -1
        is_pipeline = False
        next_s = np.inf
        for lane in range(count):
            at[lane] = lanes.begin[first + lane]
            role_of[lane] = _NOTHING
            power_w[lane] = 0.0
            until_s[lane] = stints[at[lane]].start_s
            next_s = min(next_s, until_s[lane])
        while True:
            to_s = min(next_s, makespan_s)
            if to_s > now_s:
                # What runs from `now_s` to `to_s`, and what it asks for.
                compute_w, beside_w = 0.0, 0.0
                shown, role = -1, _NOTHING
                hungry, last = 0, 0
                for lane in range(count):
                    what = role_of[lane]
                    if what == _NOTHING:
                        continue
                    if power_w[lane] > 0.0:
                        hungry, last = hungry + 1, lane
                        if what == _COMPUTE:
                            compute_w += power_w[lane]
                        else:
                            beside_w += power_w[lane]
                    if what < role:
                        shown, role = cell_of[lane], what
                lasts_s = to_s - now_s
                compute_share, beside_share = 1.0, 1.0
                if compute_w + beside_w > limit_w:
                    if compute_w > limit_w:
                        compute_share, beside_share = limit_w / compute_w, 0.0
                    else:
                        beside_share = (limit_w - compute_w) / beside_w
                granted_w = compute_w * compute_share + beside_w * beside_share
                if granted_w > 0.0:
                    if hungry == 1:  # as a rule
                        found.dynamic_j[own, cell_of[last]] += granted_w * lasts_s
                    for lane in range(count if hungry > 1 else 0):
                        if power_w[lane] > 0.0:
                            share = compute_share if role_of[lane] == _COMPUTE else beside_share
                            spent_j = power_w[lane] * share * lasts_s
                            found.dynamic_j[own, cell_of[lane]] += spent_j
                    _spread(found.power_j[own], granted_w, now_s, to_s, per_s)
                if role <= _MATERIALS_ROLE:
                    stage = 1 + role if role < _MATERIALS_ROLE else 0
                    found.exposed_s[own, stage * CLASSES + shown % CLASSES] += lasts_s
                    if role > _COMPUTE:
                        wait = _TRAFFIC if role < _MATERIALS_ROLE else _INPUT
                        found.waiting_s[own, wait] += lasts_s
                        found.waiting_j[own, wait] += granted_w * lasts_s
                else:
                    hungry_s = max(0.0, min(to_s, starved[1]) - max(now_s, starved[0]))
                    if hungry_s > 0.0:
                        found.exposed_s[own, _WAITING] += hungry_s
                        found.waiting_s[own, _INPUT] += hungry_s
                        found.waiting_j[own, _INPUT] += granted_w * hungry_s
                        lasts_s -= hungry_s
                    if role == _HOST_ROLE:
                        found.exposed_s[own, CLASSES + shown % CLASSES] += lasts_s
                    else:
                        found.exposed_s[own, CLASSES + _WAITING] += lasts_s
                        gap_s += lasts_s
                        idle_w = min(spin_w[own], limit_w - granted_w)
                        if idle_w > 0.0 and lasts_s > 0.0:
                            gap_j += idle_w * lasts_s
                            idle_w *= lasts_s / (to_s - now_s)  # not while the job is starved
                            low, high = _spread(maybe_j, idle_w, now_s, to_s, per_s)
                            gap_low, gap_high = min(gap_low, low), max(gap_high, high)
                now_s = to_s
            if not next_s < np.inf:
                break
            # What happens at this instant.
            instant_s, next_s = next_s, np.inf
            for lane in range(count):
                if until_s[lane] <= instant_s:
                    if role_of[lane] != _NOTHING:
                        role_of[lane] = _NOTHING
                        power_w[lane] = 0.0
                        at[lane] += 1
                    until_s[lane] = np.inf
                    while at[lane] < lanes.end[first + lane]:
                        stint = stints[at[lane]]
                        if stint.start_s > instant_s:
                            until_s[lane] = stint.start_s
                            break
                        is_pipeline = is_pipeline or stint.operator_class == _PIPELINE
                        if first_collective < 0 and stint.kind == _COLLECTIVE:
                            first_collective = stint.cell
                        if gap_s > 0.0 and stint.role < _HOST_ROLE:
                            spins = stint.kind == _COLLECTIVE
                            found.waiting_s[own, _STRAGGLER if spins else _BUBBLE] += gap_s
                            if spins:
                                found.waiting_j[own, _STRAGGLER] += gap_j
                                found.dynamic_j[own, stint.cell] += gap_j
                                for place in range(gap_low, gap_high + 1):
                                    found.power_j[own, place] += maybe_j[place]
                            for place in range(gap_low, gap_high + 1):
                                maybe_j[place] = 0.0
                            gap_s, gap_j, gap_low, gap_high = 0.0, 0.0, BINS, -1
                        if stint.end_s > instant_s:
                            role_of[lane], cell_of[lane] = stint.role, stint.cell
                            power_w[lane] = stint.energy_j / (stint.end_s - stint.start_s)
                            until_s[lane] = stint.end_s
                            break
                        at[lane] += 1  # it took no time, so it drew nothing
                next_s = min(next_s, until_s[lane])
        found.waiting_s[own, _BUBBLE if is_pipeline else _STRAGGLER] += gap_s
        if first_collective >= 0 and not is_pipeline:  # who is done waits in that of the next step
            found.waiting_j[own, _STRAGGLER] += gap_j
            found.dynamic_j[own, first_collective] += gap_j
            for place in range(gap_low, gap_high + 1):
                found.power_j[own, place] += maybe_j[place]
        maybe_j[:] = 0.0
