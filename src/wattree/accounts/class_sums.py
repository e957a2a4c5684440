"""Sum the tasks of each rank class in one compiled pass over a trace."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Floats, Integers
from wattree.compiled import kernel
from wattree.graph import StageLabel, TaskKind
from wattree.trace import Trace

# What the kernel compares with: numba takes whole numbers faster than members of enumerations.
_COMPUTE, _MATERIALS = int(TaskKind.COMPUTE), int(StageLabel.MATERIALS)
_COLLECTIVE, _TRANSFER = int(TaskKind.COLLECTIVE), int(TaskKind.TRANSFER)

#: Sums of the same times in another order may differ: those above this share are equal.
_EQUAL = 1 - 1e-12


class ClassSums(NamedTuple):
    """Sums by rank class, `(C,)`.

    Attributes:
        computing_s: Time of the computation of one of its ranks. [s]
        moving_s: Time of collectives and transfers whose first class it is. Not of those that
            load data: they rest on what the job says of loading. [s]
        flop: Matrix FLOP of one of its ranks.
    """

    computing_s: Floats
    moving_s: Floats
    flop: Floats

    @property
    def slowest(self) -> int:
        """The class that computes longest, the first of equals."""
        return int(np.argmax(self.computing_s >= _EQUAL * self.computing_s.max()))


class _Columns(NamedTuple):
    kind: NDArray[np.int8]
    stage: NDArray[np.int8]
    flop: Floats
    start_s: Floats
    end_s: Floats
    stream_offsets: Integers
    stream_ids: Integers
    stream_class: Integers


def class_sums(trace: Trace) -> ClassSums:
    """Return the sums over the tasks of each rank class."""
    graph = trace.graph
    found = ClassSums(*(np.zeros(len(graph.class_ranks)) for _ in ClassSums._fields))
    _add_up(_columns(trace, 0, graph.tasks), found)
    if trace.repeats is None:
        return found
    again = ClassSums(*map(np.zeros_like, found))
    for begin, end in trace.repeats.ranges:
        _add_up(_columns(trace, begin, end), again)
    return ClassSums(
        *(each + trace.repeats.times * more for each, more in zip(found, again, strict=True))
    )


def _columns(trace: Trace, begin: int, end: int) -> _Columns:
    graph, rows = trace.graph, slice(begin, end)
    return _Columns(
        kind=graph.kind[rows],
        stage=graph.stage[rows],
        flop=graph.flop[rows],
        start_s=trace.start_s[rows],
        end_s=trace.end_s[rows],
        stream_offsets=graph.stream_offsets[begin : end + 1],
        stream_ids=graph.stream_ids,
        stream_class=graph.stream_class,
    )


@kernel
def _add_up(tasks: _Columns, found: ClassSums) -> None:
    for task in range(len(tasks.kind)):
        kind = tasks.kind[task]
        begin, end = tasks.stream_offsets[task], tasks.stream_offsets[task + 1]
        busy_s = tasks.end_s[task] - tasks.start_s[task]
        if kind == _COMPUTE:
            for row in range(begin, end):
                own = tasks.stream_class[tasks.stream_ids[row]]
                found.computing_s[own] += busy_s
                found.flop[own] += tasks.flop[task]
        elif (
            ((kind == _COLLECTIVE) | (kind == _TRANSFER))
            & (begin < end)
            & (tasks.stage[task] != _MATERIALS)
        ):
            found.moving_s[tasks.stream_class[tasks.stream_ids[begin]]] += busy_s
