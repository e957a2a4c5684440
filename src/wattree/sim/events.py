"""Heaps in arrays: coming events by (time, order), and tasks about to start by task.

The order among simultaneous events is the task for an end, and the task behind all ends for a
begin of work (rule 5). Ranks in lock-step have their events at the same times, so the queue
holds *runs*: events of one time in rising order, of which only the first takes part in the heap.
What is scheduled right behind the newest run joins it. Both heaps are binary with the size in
element 0, so the children of `i` are `2i` and `2i + 1`. A task has at most one coming event,
which moves when its rate changes: the queue never holds more events than tasks run, and none is
stale.
"""

from __future__ import annotations

import numpy as np

from wattree.arrays import Integers
from wattree.compiled import part
from wattree.sim.layout import Queue

#: No slot, no run.
NONE = -1


@part
def schedule(queue: Queue, slot: int, order: int, time_s: float) -> None:
    """Schedule or move the event of a slot to `time_s`; infinity and NaN mean never."""
    if not time_s < np.inf:  # a rate of 0 or NaN: comparisons with NaN would break the heap
        time_s = np.inf
    if queue.events[slot].run != NONE:
        _withdraw(queue, slot)
    event = queue.events[slot]
    event.order = order
    event.next = NONE
    newest = queue.newest[0]
    if newest != NONE:
        run = queue.runs[newest]
        if queue.time_s[run.place] == time_s and queue.events[run.last].order < order:
            queue.events[run.last].next = slot
            event.previous = run.last
            event.run = newest
            run.last = slot
            return
    _begin_run(queue, slot, order, time_s)


@part
def pop_event(queue: Queue) -> int:
    """Remove the first event and return its slot."""
    slot = first_slot(queue)
    _withdraw(queue, slot)
    return slot


@part
def first_slot(queue: Queue) -> int:
    """Return the slot of the first event without removing it."""
    slot: int = queue.runs[queue.run[1]].first
    return slot


@part
def is_only_event(queue: Queue) -> bool:
    """Return whether the first event is the only one at its time."""
    if queue.events[first_slot(queue)].next != NONE:
        return False
    for child in range(2, min(queue.order[0], 3) + 1):
        if queue.time_s[child] == queue.time_s[1]:
            return False
    return True


@part
def replace_first(queue: Queue, order: int, time_s: float) -> None:
    """Move the first event, alone at its time, to a later one, under another order."""
    if not time_s < np.inf:
        time_s = np.inf
    number = queue.run[1]
    queue.events[queue.runs[number].first].order = order
    queue.newest[0] = number
    _sink(queue, 1, time_s, order, number)


@part
def _begin_run(queue: Queue, slot: int, order: int, time_s: float) -> None:
    number = queue.free_runs[queue.free_runs[0]]
    queue.free_runs[0] -= 1
    event, run = queue.events[slot], queue.runs[number]
    event.previous = NONE
    event.run = number
    run.first = run.last = slot
    queue.newest[0] = number
    queue.order[0] += 1
    _rise(queue, queue.order[0], time_s, order, number)


@part
def _withdraw(queue: Queue, slot: int) -> None:
    """Remove a slot's event from its run, and an empty run from the heap."""
    event = queue.events[slot]
    number = event.run
    run = queue.runs[number]
    event.run = NONE
    if event.next != NONE:
        queue.events[event.next].previous = event.previous
    else:
        run.last = event.previous
    if event.previous != NONE:
        queue.events[event.previous].next = event.next
    elif event.next != NONE:
        run.first = event.next
        order = queue.events[event.next].order
        _sink(queue, run.place, queue.time_s[run.place], order, number)
    else:
        _end_run(queue, number, run.place)


@part
def _end_run(queue: Queue, number: int, place: int) -> None:
    queue.free_runs[0] += 1
    queue.free_runs[queue.free_runs[0]] = number
    if queue.newest[0] == number:
        queue.newest[0] = NONE
    last = queue.order[0]
    time_s, order, moved = queue.time_s[last], queue.order[last], queue.run[last]
    queue.order[0] = last - 1
    queue.time_s[last] = np.inf  # nothing, and later than all there is
    if place < last:
        if place > 1 and _is_before(
            time_s, order, queue.time_s[place >> 1], queue.order[place >> 1]
        ):
            _rise(queue, place, time_s, order, moved)
        else:
            _sink(queue, place, time_s, order, moved)


@part
def _is_before(time_s: float, order: int, other_s: float, other: int) -> bool:
    # Without a branch: which of two events is first is a coin toss to the processor.
    return (time_s < other_s) | ((time_s == other_s) & (order < other))


@part
def _put(queue: Queue, place: int, time_s: float, order: int, run: int) -> None:
    queue.time_s[place] = time_s
    queue.order[place] = order
    queue.run[place] = run
    queue.runs[run].place = place


@part
def _rise(queue: Queue, place: int, time_s: float, order: int, run: int) -> None:
    while place > 1:
        parent = place >> 1
        if not _is_before(time_s, order, queue.time_s[parent], queue.order[parent]):
            break
        _put(queue, place, queue.time_s[parent], queue.order[parent], queue.run[parent])
        place = parent
    _put(queue, place, time_s, order, run)


@part
def _sink(queue: Queue, place: int, time_s: float, order: int, run: int) -> None:
    size = queue.order[0]
    child = 2 * place
    while child <= size:
        child += _is_before(  # past the last event the time is infinite
            queue.time_s[child + 1], queue.order[child + 1], queue.time_s[child], queue.order[child]
        )
        if not _is_before(queue.time_s[child], queue.order[child], time_s, order):
            break
        _put(queue, place, queue.time_s[child], queue.order[child], queue.run[child])
        place = child
        child = 2 * place
    _put(queue, place, time_s, order, run)


@part
def push_task(heap: Integers, task: int) -> None:
    """Add a task to the queue of starting tasks."""
    heap[0] += 1
    place = heap[0]
    while place > 1 and task < heap[place >> 1]:
        heap[place] = heap[place >> 1]
        place >>= 1
    heap[place] = task


@part
def pop_task(heap: Integers) -> int:
    """Remove and return the starting task with the lowest id."""
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
