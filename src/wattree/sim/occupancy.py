"""What every rank class does at each instant of a trace, added up: one sweep over its streams.

The account of energy asks three things that no sum over tasks can tell: what a device draws where
several tasks ask for more than it may, what is exposed while nothing computes, and what a rank
that does nothing waits for. One compiled sweep answers them for all classes at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.compiled import kernel, part
from wattree.graph import ExecutionGraph, OperatorClass, Phase, StageLabel, TaskKind
from wattree.trace import Trace

__all__ = [
    "BINS",
    "CLASSES",
    "Occupancy",
    "Wait",
    "class_column",
    "occupancy",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Equal parts of the step, for power over time.
BINS = 256
#: How many operator classes there are: a cell is `stage * CLASSES + class`.
CLASSES = len(OperatorClass)
_CELLS = len(StageLabel) * CLASSES
_WAITING, _PIPELINE = int(OperatorClass.WAITING), int(OperatorClass.PIPELINE_TRANSFER)
#: Tasks of classes that are swept together, counted once for each class. [32 B each]
_BATCH = 2_000_000
# The sweep takes stages by number: materials, computing, communicating.
assert [int(stage) for stage in StageLabel] == [0, 1, 2]


class Wait(IntEnum):
    """What a rank waits for while nothing computes on it."""

    BUBBLE = 0  # another stage of the pipeline
    STRAGGLER = 1  # the last of a collective's ranks, or of the job's
    COMMUNICATION = 2  # its own traffic
    INPUT = 3  # materials


class _Role(IntEnum):
    """What a task is to time; what stands first is what the rank is said to do."""

    COMPUTE = 0
    COMMUNICATION = 1
    MATERIALS = 2
    HOST = 3
    BACKGROUND = 4  # materials of later steps


# What kernels compare with: numba takes whole numbers faster than members of enumerations.
_COMPUTE, _MATERIALS_ROLE, _HOST_ROLE = int(_Role.COMPUTE), int(_Role.MATERIALS), int(_Role.HOST)
_NOTHING = len(_Role)
_BUBBLE, _STRAGGLER = int(Wait.BUBBLE), int(Wait.STRAGGLER)
_TRAFFIC, _INPUT = int(Wait.COMMUNICATION), int(Wait.INPUT)
_COLLECTIVE = int(TaskKind.COLLECTIVE)


class _Tasks(NamedTuple):
    """Columns of tasks."""

    start_s: Floats
    end_s: Floats
    energy_j: Floats
    role: NDArray[np.int8]
    stage: NDArray[np.int8]
    operator_class: NDArray[np.int8]
    kind: NDArray[np.int8]


#: A task as its rank class sees it. Those of a lane lie side by side: the sweep goes through all
#: lanes of a class at once, and columns would have it wait for memory at every task.
_STINT = np.dtype(
    [
        ("start_s", np.float64),
        ("end_s", np.float64),
        ("energy_j", np.float64),
        ("cell", np.int32),
        ("role", np.int8),
        ("kind", np.int8),
        ("operator_class", np.int16),
    ]
)


class _Members(NamedTuple):
    """Which streams tasks occupy, and whose streams these are."""

    row_offsets: Integers
    stream_ids: Integers
    stream_class: Integers


class _Lanes(NamedTuple):
    """Streams that have tasks, by class: first lane of each class, rows of each lane."""

    of_class: Integers
    begin: Integers
    end: Integers


class _Scratch(NamedTuple):
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


def occupancy(
    trace: Trace,
    energy_j: Floats,
    most_w: Floats,
    *,
    starved: tuple[float, float],
    spin_w: Floats | None = None,
    classes: Integers | None = None,
) -> Occupancy:
    """Return what the ranks do, added up.

    At each instant, computation draws what it asks for; what runs beside it shares the rest of
    `most_w`. Time belongs to the first of: computation, communication, input work that computation
    waits for, `starved`, work of the host, waiting. Waiting that a collective ends was for the
    last of its ranks, and so was that before the end of the step without a pipeline: who is done
    goes on to the first collective of the next step. In such waits the kernels of the collective
    spin: they draw `spin_w`, as far as the limit leaves it, for its stage and class.

    Args:
        trace: What was played.
        energy_j: Above rest, that each task asks of one device, `(T,)`. [J]
        most_w: What a device of each class may draw above rest, `(C,)`. [W]
        starved: When the whole job waits for materials of later steps. [s]
        spin_w: What a device of each class draws above rest while it waits in a collective, `(C,)`;
            nothing if None. [W]
        classes: Those to look at; all if None. The rows of others are 0.
    """
    graph = trace.graph
    number = len(graph.class_ranks)
    found = Occupancy(
        dynamic_j=np.zeros((number, _CELLS)),
        exposed_s=np.zeros((number, _CELLS)),
        waiting_s=np.zeros((number, len(Wait))),
        waiting_j=np.zeros((number, len(Wait))),
        power_j=np.zeros((number, BINS)),
    )
    tasks = _Tasks(
        start_s=trace.start_s,
        end_s=trace.end_s,
        energy_j=energy_j,
        role=_roles(graph),
        stage=graph.stage,
        operator_class=class_column(graph),
        kind=graph.kind,
    )
    members = _Members(graph.stream_offsets, graph.stream_ids, graph.stream_class)
    counts = np.zeros(len(graph.stream_class), dtype=np.int64)
    spans = np.stack([np.full(number, graph.tasks), np.zeros(number, np.int64)], axis=1)
    _count(members, np.full(number, -1), counts, spans)
    asked = np.zeros(number, dtype=bool)
    asked[np.arange(number) if classes is None else classes] = True
    of_class = np.bincount(graph.stream_class, counts, number)
    batches = list(_batches(of_class, spans, asked))
    room = max((int(of_class[batch].sum()) for batch in batches), default=0)
    spins_w = np.zeros(number) if spin_w is None else spin_w
    stints = np.empty(room, _STINT)  # one for all: fresh memory costs more than filling it
    for batch in batches:
        chosen = np.zeros(number, dtype=bool)
        chosen[batch] = True
        lanes, begins = _lanes(members, np.where(chosen[graph.stream_class], counts, 0), number)
        if of_class[batch].any():
            reach = int(spans[batch, 0].min()), int(spans[batch, 1].max())
            _pack(tasks, members, chosen, reach, np.full(number, -1), begins, stints)
        _sweep(
            stints, lanes, batch, most_w, spins_w, trace.makespan_s, starved, _scratch(lanes), found
        )
    return found


def class_column(graph: ExecutionGraph) -> NDArray[np.int8]:
    """Return the operator class of each task; by kind and stage where nobody said. `(T,)`"""
    if graph.operator_class is not None:
        return graph.operator_class
    found = np.full(graph.tasks, OperatorClass.OTHER, dtype=np.int8)
    found[graph.kind == TaskKind.HOST] = OperatorClass.HOST
    found[graph.kind == TaskKind.COLLECTIVE] = OperatorClass.OTHER_EXCHANGE
    found[graph.kind == TaskKind.TRANSFER] = OperatorClass.PIPELINE_TRANSFER
    found[(graph.kind == TaskKind.COMPUTE) & (graph.phase == Phase.OPTIMIZER)] = (
        OperatorClass.OPTIMIZER
    )
    return found


def _roles(graph: ExecutionGraph) -> NDArray[np.int8]:
    table = np.full((len(TaskKind), len(Phase)), _Role.COMMUNICATION, dtype=np.int8)
    table[TaskKind.HOST] = _Role.HOST
    table[:, Phase.MATERIALS] = _Role.MATERIALS
    table[TaskKind.COMPUTE] = _Role.COMPUTE
    table[:, Phase.PREFETCH] = _Role.BACKGROUND
    return np.asarray(table.ravel()[graph.kind * np.int8(len(Phase)) + graph.phase])


def _batches(counts: NDArray[Any], spans: Integers, asked: NDArray[np.bool_]) -> Iterator[Integers]:
    """Yield classes, neighbours together, so many that what they do takes little memory.

    Classes whose tasks lie apart (those of pipeline stages do) are swept apart: memory that is
    used again is faster than fresh memory.
    """
    chosen = np.flatnonzero(asked)
    reached = np.maximum.accumulate(spans[chosen, 1])
    is_apart = np.concatenate(([False], spans[chosen[1:], 0] > reached[:-1]))
    number = np.cumsum(counts[chosen]) // _BATCH + len(counts) * np.cumsum(is_apart)
    for batch in np.unique(number):
        yield chosen[number == batch]


def _lanes(members: _Members, counts: Integers, classes: int) -> tuple[_Lanes, Integers]:
    """Return lanes for streams with so many tasks each, and where each stream begins."""
    ends = np.cumsum(counts)
    used = np.flatnonzero(counts)
    used = used[np.argsort(members.stream_class[used], kind="stable")]
    of_class = np.zeros(classes + 1, dtype=np.int64)
    np.cumsum(np.bincount(members.stream_class[used], minlength=classes), out=of_class[1:])
    begins = ends - counts
    lanes = _Lanes(of_class=of_class, begin=begins[used], end=ends[used])
    return lanes, begins


def _scratch(lanes: _Lanes) -> _Scratch:
    most = int(np.diff(lanes.of_class).max(initial=0))
    return _Scratch(
        at=np.zeros(most, np.int64),
        until_s=np.zeros(most),
        role=np.zeros(most, np.int64),
        cell=np.zeros(most, np.int64),
        power_w=np.zeros(most),
        spin_j=np.zeros(BINS),
    )


@kernel
def _count(members: _Members, last: Integers, counts: Integers, spans: Integers) -> None:
    """Count the tasks of streams, one of several streams of a class at the first of them."""
    for task in range(len(members.row_offsets) - 1):
        for row in range(members.row_offsets[task], members.row_offsets[task + 1]):
            stream = members.stream_ids[row]
            own = members.stream_class[stream]
            if last[own] != task:
                last[own] = task
                counts[stream] += 1
                spans[own, 0] = min(spans[own, 0], task)
                spans[own, 1] = task


@kernel
def _pack(
    tasks: _Tasks,
    members: _Members,
    chosen: NDArray[np.bool_],
    reach: tuple[int, int],
    last: Integers,
    at: Integers,
    stints: NDArray[np.void],
) -> None:
    """Write down what streams of chosen classes do, `at` the places for each stream's next."""
    for task in range(reach[0], reach[1] + 1):
        for row in range(members.row_offsets[task], members.row_offsets[task + 1]):
            stream = members.stream_ids[row]
            own = members.stream_class[stream]
            if chosen[own] and last[own] != task:
                last[own] = task
                stint = stints[at[stream]]
                stint.start_s = tasks.start_s[task]
                stint.end_s = tasks.end_s[task]
                stint.energy_j = tasks.energy_j[task]
                stint.cell = tasks.stage[task] * CLASSES + tasks.operator_class[task]
                stint.role = tasks.role[task]
                stint.kind = tasks.kind[task]
                stint.operator_class = tasks.operator_class[task]
                at[stream] += 1


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
def _sweep(
    stints: NDArray[np.void],
    lanes: _Lanes,
    classes: Integers,
    most_w: Floats,
    spin_w: Floats,
    makespan_s: float,
    starved: tuple[float, float],
    scratch: _Scratch,
    found: Occupancy,
) -> None:
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
