"""Find the tasks started and ended by one moment of an execution, to the single event.

A trace holds when tasks start and end. Events at one instant have an order too (rule 5 at the
top of `graph/execution_graph.py`), and memory may peak in their midst: that instant is executed
again here, event by event.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Flags, Integers
from wattree.trace import Trace

_END, _START = 0, 2  # priorities of simultaneous events; what begins to work changes no memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment between two events.

    Attributes:
        started, ended: What each task has done by then, `(T,)`.
    """

    started: Flags
    ended: Flags


def moment_of_start(trace: Trace, task: int) -> Moment:
    """Return the moment right after the start of `task`; before anything if `task` is -1."""
    count = trace.graph.tasks
    if task < 0:
        return Moment(started=np.zeros(count, dtype=bool), ended=np.zeros(count, dtype=bool))
    now_s = trace.start_s[task]
    started, ended = trace.start_s < now_s, trace.end_s < now_s
    for kind, other in _instant(trace, float(now_s)):
        (ended if kind == _END else started)[other] = True
        if kind == _START and other == task:
            break
    return Moment(started=started, ended=ended)


def _instant(trace: Trace, now_s: float) -> list[tuple[int, int]]:
    """Return the starts and ends at `now_s` in their order, as (priority, task)."""
    begins, finishes = trace.start_s == now_s, trace.end_s == now_s
    involved = np.flatnonzero(begins | finishes)
    waits = _waits(trace, involved, begins, finishes)
    unmet = dict.fromkeys(involved.tolist(), 0)
    for followers in waits.values():
        for task in followers:
            unmet[task] += 1
    heap = [(_END, task) for task in np.flatnonzero(finishes & ~begins).tolist()]
    heap += [(_START, task) for task in np.flatnonzero(begins).tolist() if not unmet[task]]
    heapq.heapify(heap)
    order = []
    while heap:
        kind, task = heapq.heappop(heap)
        order.append((kind, task))
        if kind == _START:
            if finishes[task]:
                heapq.heappush(heap, (_END, task))
            continue
        for follower in waits.get(task, ()):
            unmet[follower] -= 1
            if not unmet[follower]:
                heapq.heappush(heap, (_START, follower))
    return order


def _waits(trace: Trace, involved: Integers, begins: Flags, finishes: Flags) -> dict[int, set[int]]:
    """Return task that ends at the instant → those that start at it once it has ended."""
    graph = trace.graph
    waits: dict[int, set[int]] = {}
    last_on: dict[int, int] = {}
    for task in involved.tolist():  # ascending, as streams take them
        for stream in graph.stream_ids[
            graph.stream_offsets[task] : graph.stream_offsets[task + 1]
        ].tolist():
            before = last_on.get(stream, -1)
            if begins[task] and before >= 0 and finishes[before]:
                waits.setdefault(before, set()).add(task)
            last_on[stream] = task
        if finishes[task]:
            after = graph.successors[
                graph.successor_offsets[task] : graph.successor_offsets[task + 1]
            ]
            waits.setdefault(task, set()).update(after[begins[after]].tolist())
    return waits
