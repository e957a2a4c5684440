"""What every rank class does at each instant of a trace, added up: one sweep over its streams.

The account of energy asks three things that no sum over tasks can tell: what a device draws where
several tasks ask for more than it may, what is exposed while nothing computes, and what a rank
that does nothing waits for. One compiled sweep answers them for all classes at once.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.graph import ExecutionGraph, OperatorClass, Phase, StageLabel, TaskKind
from wattree.sim.compiled import is_cached, kernel
from wattree.trace import Trace

__all__ = ["BINS", "CLASSES", "Occupancy", "Wait", "occupancy", "occupancy_is_compiled"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Equal parts of the step, for power over time.
BINS = 256
#: How many operator classes there are: a cell is `stage * CLASSES + class`.
CLASSES = len(OperatorClass)
_CELLS = len(StageLabel) * CLASSES
_WAITING, _PIPELINE = int(OperatorClass.WAITING), int(OperatorClass.PIPELINE_TRANSFER)
_MATERIALS, _COMPUTING = int(StageLabel.MATERIALS), int(StageLabel.COMPUTING)


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


#: Stage of the time that a role is exposed.
_STAGE_OF_ROLE = np.array(
    [
        StageLabel.COMPUTING,
        StageLabel.COMMUNICATING,
        StageLabel.MATERIALS,
        StageLabel.COMPUTING,
        StageLabel.MATERIALS,
    ],
    dtype=np.int64,
)


class _Tasks(NamedTuple):
    """Columns of tasks."""

    start_s: Floats
    end_s: Floats
    energy_j: Floats
    role: NDArray[np.int8]
    stage: NDArray[np.int8]
    operator_class: NDArray[np.int8]
    kind: NDArray[np.int8]


class _Lanes(NamedTuple):
    """Tasks of each stream that has any, by class: two CSRs."""

    of_class: Integers
    offsets: Integers
    tasks: NDArray[np.int32]


class _Scratch(NamedTuple):
    """Of each lane of one class: next row, when something happens to it, task, power."""

    at: Integers
    until_s: Floats
    task: Integers
    power_w: Floats


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
    classes: Integers | None = None,
) -> Occupancy:
    """Return what the ranks do, added up.

    At each instant, computation draws what it asks for; what runs beside it shares the rest of
    `most_w`. Time belongs to the first of: computation, communication, input work that computation
    waits for, `starved`, work of the host, waiting. Waiting that a collective ends was for the
    last of its ranks, and so was that before the end of the step without a pipeline.

    Args:
        trace: What was played.
        energy_j: Above rest, that each task asks of one device, `(T,)`. [J]
        most_w: What a device of each class may draw above rest, `(C,)`. [W]
        starved: When the whole job waits for materials of later steps. [s]
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
    chosen = np.arange(number) if classes is None else classes
    lanes = _lanes(graph)
    most = int(np.diff(lanes.of_class).max(initial=0)) + 1
    scratch = _Scratch(
        np.zeros(most, np.int64), np.zeros(most), np.zeros(most, np.int64), np.zeros(most)
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
    _sweep(tasks, lanes, chosen, most_w, trace.makespan_s, starved, _STAGE_OF_ROLE, scratch, found)
    return found


def occupancy_is_compiled() -> bool:
    """Return whether the machine code of the sweep is on disk."""
    return is_cached(_sweep) and is_cached(_fill)


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


def _lanes(graph: ExecutionGraph) -> _Lanes:
    """Return the tasks of each stream in their order; a class counts each task once."""
    streams = len(graph.stream_class)
    offsets = np.zeros(streams + 1, dtype=np.int64)
    _count(graph.stream_offsets, graph.stream_ids, graph.stream_class, offsets)
    np.cumsum(offsets, out=offsets)
    tasks = np.empty(int(offsets[-1]), dtype=np.int32)
    _fill(graph.stream_offsets, graph.stream_ids, graph.stream_class, offsets[:-1].copy(), tasks)
    used = np.flatnonzero(np.diff(offsets))
    used = used[np.argsort(graph.stream_class[used], kind="stable")]
    return _ordered(graph, used, offsets, tasks)


def _ordered(
    graph: ExecutionGraph, used: Integers, offsets: Integers, tasks: NDArray[np.int32]
) -> _Lanes:
    """Return lanes of used streams by class; their rows stay where they are."""
    counts = np.bincount(graph.stream_class[used], minlength=len(graph.class_ranks))
    of_class = np.concatenate(([0], np.cumsum(counts)))
    rows = np.stack([offsets[:-1][used], offsets[1:][used]], axis=1)
    return _Lanes(of_class=of_class, offsets=np.ascontiguousarray(rows).ravel(), tasks=tasks)


@kernel
def _count(
    row_offsets: Integers, stream_ids: Integers, stream_class: Integers, counts: Integers
) -> None:
    for task in range(len(row_offsets) - 1):
        before = -1
        for row in range(row_offsets[task], row_offsets[task + 1]):
            stream = stream_ids[row]
            if stream_class[stream] != before:
                counts[stream + 1] += 1
            before = stream_class[stream]


@kernel
def _fill(
    row_offsets: Integers,
    stream_ids: Integers,
    stream_class: Integers,
    at: Integers,
    tasks: NDArray[np.int32],
) -> None:
    for task in range(len(row_offsets) - 1):
        before = -1
        for row in range(row_offsets[task], row_offsets[task + 1]):
            stream = stream_ids[row]
            if stream_class[stream] != before:
                tasks[at[stream]] = task
                at[stream] += 1
            before = stream_class[stream]


@kernel
def _sweep(
    tasks: _Tasks,
    lanes: _Lanes,
    classes: Integers,
    most_w: Floats,
    makespan_s: float,
    starved: tuple[float, float],
    stage_of_role: Integers,
    scratch: _Scratch,
    found: Occupancy,
) -> None:
    at, until_s, running, power_w = scratch.at, scratch.until_s, scratch.task, scratch.power_w
    per_s = BINS / makespan_s if makespan_s > 0.0 else 0.0
    idle_cell = _COMPUTING * CLASSES + _WAITING
    starved_cell = _MATERIALS * CLASSES + _WAITING
    for index in range(len(classes)):
        own = classes[index]
        first, count = lanes.of_class[own], lanes.of_class[own + 1] - lanes.of_class[own]
        limit_w = most_w[own]
        now_s, gap_s = 0.0, 0.0
        is_pipeline = False
        for lane in range(count):
            at[lane] = lanes.offsets[2 * (first + lane)]
            running[lane] = -1
            power_w[lane] = 0.0
            task = lanes.tasks[at[lane]]
            until_s[lane] = tasks.start_s[task]
        while True:
            next_s = np.inf
            for lane in range(count):
                next_s = min(next_s, until_s[lane])
            to_s = min(next_s, makespan_s)
            if to_s > now_s:
                # What runs from `now_s` to `to_s`, and what it asks for.
                compute_w, beside_w = 0.0, 0.0
                shown, role = -1, 5
                for lane in range(count):
                    task = running[lane]
                    if task >= 0:
                        what = tasks.role[task]
                        if what == 0:
                            compute_w += power_w[lane]
                        else:
                            beside_w += power_w[lane]
                        if what < role:
                            shown, role = task, what
                lasts_s = to_s - now_s
                compute_share, beside_share = 1.0, 1.0
                if compute_w + beside_w > limit_w:
                    if compute_w > limit_w:
                        compute_share, beside_share = limit_w / compute_w, 0.0
                    else:
                        beside_share = (limit_w - compute_w) / beside_w
                granted_w = compute_w * compute_share + beside_w * beside_share
                if granted_w > 0.0:
                    for lane in range(count):
                        if power_w[lane] > 0.0:
                            task = running[lane]
                            cell = tasks.stage[task] * CLASSES + tasks.operator_class[task]
                            share = compute_share if tasks.role[task] == 0 else beside_share
                            found.dynamic_j[own, cell] += power_w[lane] * share * lasts_s
                    low, high = int(now_s * per_s), int(to_s * per_s)
                    low, high = min(low, BINS - 1), min(high, BINS - 1)
                    if low == high:
                        found.power_j[own, low] += granted_w * lasts_s
                    else:
                        found.power_j[own, low] += granted_w * ((low + 1) / per_s - now_s)
                        for part in range(low + 1, high):
                            found.power_j[own, part] += granted_w / per_s
                        found.power_j[own, high] += granted_w * (to_s - high / per_s)
                if role <= 2:
                    cell = stage_of_role[role] * CLASSES + tasks.operator_class[shown]
                    found.exposed_s[own, cell] += lasts_s
                    if role > 0:
                        wait = 2 if role == 1 else 3
                        found.waiting_s[own, wait] += lasts_s
                        found.waiting_j[own, wait] += granted_w * lasts_s
                else:
                    hungry_s = max(0.0, min(to_s, starved[1]) - max(now_s, starved[0]))
                    if hungry_s > 0.0:
                        found.exposed_s[own, starved_cell] += hungry_s
                        found.waiting_s[own, 3] += hungry_s
                        found.waiting_j[own, 3] += granted_w * hungry_s
                        lasts_s -= hungry_s
                    if role == 3:
                        cell = stage_of_role[3] * CLASSES + tasks.operator_class[shown]
                        found.exposed_s[own, cell] += lasts_s
                    else:
                        found.exposed_s[own, idle_cell] += lasts_s
                        gap_s += lasts_s
                now_s = to_s
            if not next_s < np.inf:
                break
            # What happens at this instant.
            for lane in range(count):
                if until_s[lane] > next_s:
                    continue
                if running[lane] >= 0:
                    running[lane] = -1
                    power_w[lane] = 0.0
                    at[lane] += 1
                end = lanes.offsets[2 * (first + lane) + 1]
                until_s[lane] = np.inf
                while at[lane] < end:
                    task = lanes.tasks[at[lane]]
                    start_s, end_s = tasks.start_s[task], tasks.end_s[task]
                    if start_s > next_s:
                        until_s[lane] = start_s
                        break
                    is_pipeline = is_pipeline or tasks.operator_class[task] == _PIPELINE
                    if gap_s > 0.0 and tasks.role[task] < 3:
                        wait = 1 if tasks.kind[task] == 1 else 0
                        found.waiting_s[own, wait] += gap_s
                        gap_s = 0.0
                    if end_s > next_s:
                        running[lane] = task
                        power_w[lane] = tasks.energy_j[task] / (end_s - start_s)
                        until_s[lane] = end_s
                        break
                    at[lane] += 1  # it took no time, so it drew nothing
        found.waiting_s[own, 0 if is_pipeline else 1] += gap_s
