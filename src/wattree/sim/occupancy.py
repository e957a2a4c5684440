"""Sums of what each rank class does at each instant of a trace: one sweep over its streams.

The account of energy asks three things that no sum over tasks can tell: what a device draws where
several tasks ask for more than it may, what is exposed while nothing computes, and what a rank
that does nothing waits for. One compiled sweep answers them for all classes at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Flags, Floats, Integers
from wattree.compiled import kernel
from wattree.graph import ExecutionGraph, OperatorClass, Phase, StageLabel, TaskKind
from wattree.sim.drawn import BINS, Again, Occupancy, Scratch
from wattree.sim.sweep import CLASSES, Lanes, Role, Wait, sweep
from wattree.trace import Repeats, Trace

_CELLS = len(StageLabel) * CLASSES
#: Tasks of classes that are swept together, counted once for each class. [32 B each]
_BATCH = 2_000_000
# The sweep takes stages by number: materials, computing, communicating.
assert [int(stage) for stage in StageLabel] == [0, 1, 2]


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
    """The streams that tasks occupy, and the rank class of each stream."""

    row_offsets: Integers
    stream_ids: Integers
    stream_class: Integers


def occupancy(
    trace: Trace,
    energy_j: Floats,
    most_w: Floats,
    *,
    starved: tuple[float, float],
    spin_w: Floats | None = None,
    classes: Integers | None = None,
) -> Occupancy:
    """Return the summed occupancy of the ranks.

    At each instant, computation draws what it asks for; what runs alongside it shares the rest of
    `most_w`. Time belongs to the first of: computation, communication, input work that computation
    waits for, `starved`, work of the host, waiting. Waiting that a collective ends was for the
    last of its ranks, and so was that before the end of the step without a pipeline: who is done
    goes on to the first collective of the next step. In such waits the kernels of the collective
    spin: they draw `spin_w`, as far as the limit leaves it, for its stage and class.

    Args:
        energy_j: Above rest, that each task asks of one device, `(T,)`. [J]
        most_w: What a device of each class may draw above rest, `(C,)`. [W]
        starved: When the whole job waits for materials of later steps. [s]
        spin_w: What a device of each class draws above rest while it waits in a collective, `(C,)`;
            nothing if None. [W]
        classes: Those to look at; all if None. The rows of others are 0.
    """
    graph = trace.graph
    number = len(graph.class_ranks)
    found = _nothing(number)
    tasks = _tasks(trace, energy_j)
    members = _Members(graph.stream_offsets, graph.stream_ids, graph.stream_class)
    counts = np.zeros(len(graph.stream_class), dtype=np.int64)
    spans = np.stack([np.full(number, graph.tasks), np.zeros(number, np.int64)], axis=1)
    _count(members, np.full(number, -1), counts, spans)
    asked = np.zeros(number, dtype=bool)
    asked[np.arange(number) if classes is None else classes] = True
    of_class = np.bincount(graph.stream_class, counts, number)
    batches = list(_batches(of_class, spans, asked))
    capacity = max((int(of_class[batch].sum()) for batch in batches), default=0)
    spins_w = np.zeros(number) if spin_w is None else spin_w
    again = _again(trace.repeats)
    streams = int(np.bincount(graph.stream_class, minlength=1).max())
    scratch = _scratch(streams, int(of_class.max(initial=0)))
    stints = np.empty(capacity, _STINT)  # one for all: fresh memory costs more than filling it
    for batch in batches:
        chosen = np.zeros(number, dtype=bool)
        chosen[batch] = True
        lanes, begins = _lanes(members, np.where(chosen[graph.stream_class], counts, 0), number)
        if of_class[batch].any():
            span = int(spans[batch, 0].min()), int(spans[batch, 1].max())
            _pack(tasks, members, chosen, span, np.full(number, -1), begins, stints)
        ends = trace.makespan_s, starved
        repeated = sweep(stints, lanes, batch, most_w, spins_w, *ends, again, scratch, found)
        assert repeated == (len(batch) if trace.repeats else 0), "nothing ever stops for a moment"
    return found


def _nothing(number: int) -> Occupancy:
    return Occupancy(
        dynamic_j=np.zeros((number, _CELLS)),
        exposed_s=np.zeros((number, _CELLS)),
        waiting_s=np.zeros((number, len(Wait))),
        waiting_j=np.zeros((number, len(Wait))),
        power_j=np.zeros((number, BINS)),
    )


def _again(repeats: Repeats | None) -> Again:
    """Return what comes again as the sweep takes it; nothing without repeats."""
    if repeats is None:
        return 0, 0.0, np.zeros((0, 2))
    return repeats.times, repeats.period_s, repeats.steady_s


def _tasks(trace: Trace, energy_j: Floats) -> _Tasks:
    graph = trace.graph
    return _Tasks(
        start_s=trace.start_s,
        end_s=trace.end_s,
        energy_j=energy_j,
        role=_roles(graph),
        stage=graph.stage,
        operator_class=class_column(graph),
        kind=graph.kind,
    )


def class_column(graph: ExecutionGraph) -> NDArray[np.int8]:
    """Return the operator class of each task; by kind and stage where none is given. `(T,)`"""
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
    table = np.full((len(TaskKind), len(Phase)), Role.COMMUNICATION, dtype=np.int8)
    table[TaskKind.HOST] = Role.HOST
    table[:, Phase.MATERIALS] = Role.MATERIALS
    table[TaskKind.COMPUTE] = Role.COMPUTE
    table[:, Phase.PREFETCH] = Role.BACKGROUND
    return np.asarray(table.ravel()[graph.kind * np.int8(len(Phase)) + graph.phase])


def _batches(counts: NDArray[Any], spans: Integers, asked: Flags) -> Iterator[Integers]:
    """Yield batches of adjacent classes, small enough to limit memory use.

    Classes whose tasks lie apart (those of pipeline stages do) are swept apart: memory that is
    used again is faster than fresh memory.
    """
    chosen = np.flatnonzero(asked)
    reached = np.maximum.accumulate(spans[chosen, 1])
    is_apart = np.concatenate(([False], spans[chosen[1:], 0] > reached[:-1]))
    number = np.cumsum(counts[chosen]) // _BATCH + len(counts) * np.cumsum(is_apart)
    for batch in dict.fromkeys(number.tolist()):
        yield chosen[number == batch]


def _lanes(members: _Members, counts: Integers, classes: int) -> tuple[Lanes, Integers]:
    """Return lanes for streams with the given task counts, and where each stream begins."""
    ends = np.cumsum(counts)
    used = np.flatnonzero(counts)
    used = used[np.argsort(members.stream_class[used], kind="stable")]
    of_class = np.zeros(classes + 1, dtype=np.int64)
    np.cumsum(np.bincount(members.stream_class[used], minlength=classes), out=of_class[1:])
    begins = ends - counts
    lanes = Lanes(of_class=of_class, begin=begins[used], end=ends[used])
    return lanes, begins


def _scratch(lanes: int, rows: int) -> Scratch:
    """Return the state of a class with at most so many lanes and rows."""
    instants = 2 * rows + 8  # of starts and ends, and where a turn begins and ends
    return Scratch(
        at=np.zeros(lanes, np.int64),
        until_s=np.zeros(lanes),
        role=np.zeros(lanes, np.int64),
        cell=np.zeros(lanes, np.int64),
        power_w=np.zeros(lanes),
        counts=np.zeros(3, np.int64),
        gap=np.empty((instants, 3)),
        turn=np.empty((2 * instants, 3)),
        before=(np.zeros(_CELLS), np.zeros(_CELLS), np.zeros(len(Wait)), np.zeros(len(Wait))),
    )


@kernel
def _count(members: _Members, last: Integers, counts: Integers, spans: Integers) -> None:
    """Count the tasks of streams; a task on several streams of a class counts on the first."""
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
    chosen: Flags,
    span: tuple[int, int],
    last: Integers,
    at: Integers,
    stints: NDArray[np.void],
) -> None:
    """Write the tasks of the chosen classes' streams; `at` is the next place of each stream."""
    for task in range(span[0], span[1] + 1):
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
