"""Heaps in arrays: coming events by (time, order), and tasks about to start by task.

The order among simultaneous events is the task for an end, and the task behind all ends for a
begin of work (rule 5). Both are binary heaps whose element 0 holds the size, so the children of
`i` are `2i` and `2i + 1`. A task has at most one coming event, which moves in
place when its rate changes: the queue never holds more events than tasks run, and none is stale.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattree.sim.compiled import part
from wattree.sim.layout import Queue

__all__ = ["pop_event", "pop_task", "push_task", "schedule"]


@part
def schedule(queue: Queue, slot: int, order: int, time_s: float) -> None:
    """Give a slot an event at `time_s`, or move the one it has; what is no time is never."""
    if not time_s < np.inf:  # a rate of 0 or NaN: comparisons with NaN would break the heap
        time_s = np.inf
    place = queue.place[slot]
    if place == 0:
        queue.order[0] += 1
        place = queue.order[0]
    elif queue.time_s[place] < time_s:
        _sink(queue, place, time_s, order, slot)
        return
    _rise(queue, place, time_s, order, slot)


@part
def pop_event(queue: Queue) -> int:
    """Remove the first event and return its slot."""
    slot: int = queue.slot[1]
    queue.place[slot] = 0
    last = queue.order[0]
    time_s = queue.time_s[last]
    queue.order[0] = last - 1
    queue.time_s[last] = np.inf  # nothing, and later than all there is
    if last > 1:
        _sink(queue, 1, time_s, queue.order[last], queue.slot[last])
    return slot


@part
def _is_before(time_s: float, order: int, other_s: float, other: int) -> bool:
    # Without a branch: which of two events is first is a coin toss to the processor.
    return (time_s < other_s) | ((time_s == other_s) & (order < other))


@part
def _put(queue: Queue, place: int, time_s: float, order: int, slot: int) -> None:
    queue.time_s[place] = time_s
    queue.order[place] = order
    queue.slot[place] = slot
    queue.place[slot] = place


@part
def _rise(queue: Queue, place: int, time_s: float, order: int, slot: int) -> None:
    while place > 1:
        parent = place >> 1
        if not _is_before(time_s, order, queue.time_s[parent], queue.order[parent]):
            break
        _put(queue, place, queue.time_s[parent], queue.order[parent], queue.slot[parent])
        place = parent
    _put(queue, place, time_s, order, slot)


@part
def _sink(queue: Queue, place: int, time_s: float, order: int, slot: int) -> None:
    size = queue.order[0]
    child = 2 * place
    while child <= size:
        child += _is_before(  # past the last event the time is infinite
            queue.time_s[child + 1], queue.order[child + 1], queue.time_s[child], queue.order[child]
        )
        if not _is_before(queue.time_s[child], queue.order[child], time_s, order):
            break
        _put(queue, place, queue.time_s[child], queue.order[child], queue.slot[child])
        place = child
        child = 2 * place
    _put(queue, place, time_s, order, slot)


@part
def push_task(heap: NDArray[np.int64], task: int) -> None:
    """Add a task to those about to start."""
    heap[0] += 1
    place = heap[0]
    while place > 1 and task < heap[place >> 1]:
        heap[place] = heap[place >> 1]
        place >>= 1
    heap[place] = task


@part
def pop_task(heap: NDArray[np.int64]) -> int:
    """Remove and return the task with the lowest id."""
    first: int = heap[1]
    last = heap[heap[0]]
    heap[0] -= 1
    size = heap[0]
    place, child = 1, 2
    while child <= size:
        if child < size and heap[child + 1] < heap[child]:
            child += 1
        if last <= heap[child]:
            break
        heap[place] = heap[child]
        place = child
        child = 2 * place
    heap[place] = last
    return first
