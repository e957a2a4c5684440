"""The engine's memory layout of a graph: one cache line per task, and buffers for all state.

The arrays of an `ExecutionGraph` are good to build and to read column by column. The engine
jumps from task to task instead, so what it needs of one task is copied side by side first.
Conventions: *stacks* and *heaps* are arrays whose element 0 holds their size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Flags, Floats, Integers
from wattree.compiled import part
from wattree.graph import ExecutionGraph
from wattree.sim.prune import crowdable_flows

#: One record of the arrays below, with the fields of its type, which mypy cannot know.
Record = Any


def _record(**fields: str) -> np.dtype[np.void]:
    """Return a type of records with fields of each type, their names apart by blanks."""
    typed = [(name, kind) for kind, names in fields.items() for name in names.split()]
    return np.dtype(typed, align=True)


#: A task. What it waits for is counted apart, in `Board.unmet`: counts are needed long before the
#: rest, and so close together they stay in the cache.
TASK = _record(
    f8="latency_s work_s alloc_bytes free_bytes",
    i4="seats seats_end successors successors_end flows flows_end",
    i1="kind overlaps",
)
#: A task on one of its streams. `after` is the next task there; `rank_class` is -1 on all but
#: one of the streams that a task has on the same class.
SEAT = _record(i4="stream after rank_class")
#: A task between start and end. `fill` is its share while shares are being solved; `phase` is
#: one of the three below; `slowed` tells that overlap has made its work longer (`proteus`).
SLOT = _record(
    f8="rate remaining_s since_s share fill busiest_bytes_per_s",
    i8="visit task nodes nodes_end",
    i1="phase dirty slowed",
)
#: A rank class: memory, and how many of its tasks are in their work phase. `computing` and
#: `communicating` are the counts' signs at the end of the last instant.
RANK_CLASS = _record(
    f8="level_bytes peak_bytes",
    i8="peak_task computes communications",
    i1="computing communicating touched",
)
#: A link and the list of flows on it, oldest first (-1: none).
LINK = _record(
    f8="bandwidth_bytes_per_s demand_bytes_per_s full_at_bytes_per_s",
    i8="visit first last",
    i1="crowded touched",
)
#: A flow on one link, a node of that link's list. Every slot has room for the widest flow.
NODE = _record(f8="bytes_per_s", i8="link previous next slot")
#: The coming event of a slot, and its neighbours in the run that it is part of (-1: none).
EVENT = _record(i8="order run previous next")
#: Events of one time in rising order: where in the heap they are, the first and the last slot.
RUN = _record(i8="place first last")


#: What a running task does: waits out a latency before its work, works, or waits out its end.
BEFORE_WORK, AT_WORK, WITHOUT_WORK = 0, 1, 2


class Queue(NamedTuple):
    """Heap of runs of coming events by (time, order of the first); `newest` is the last begun."""

    time_s: Floats
    order: Integers
    run: Integers
    events: NDArray[np.void]
    runs: NDArray[np.void]
    free_runs: Integers
    newest: Integers


class FlowNetwork(NamedTuple):
    """Links, flows on them (`capacity` nodes per slot), and scratch space of the sharing policies.

    `busiest_bytes_per_s` is what one of the flows that each task stands for takes on its busiest
    link; empty where every flow stands for itself.
    """

    links: NDArray[np.void]
    nodes: NDArray[np.void]
    capacity: int
    flow_links: Integers
    flow_bytes_per_s: Floats
    busiest_bytes_per_s: Floats
    touched: Integers
    members: Integers
    crowded: Integers
    visit: Integers


class Board(NamedTuple):
    """State of tasks, streams and rank classes.

    `unmet` counts what each task waits for: predecessors and turns on its streams.
    """

    tasks: NDArray[np.void]
    unmet: NDArray[np.int32]
    seats: NDArray[np.void]
    slots: NDArray[np.void]
    free_slots: Integers
    dirty: Integers
    classes: NDArray[np.void]
    touched: Integers
    stream_slot: Integers
    last_seat: Integers
    last_task: Integers
    ready: Integers
    class_offsets: Integers
    class_streams: Integers
    compute_rate: float
    communication_rate: float


class Columns(NamedTuple):
    """The columns of a graph that the kernels read."""

    kind: NDArray[np.int8]
    latency_s: Floats
    work_s: Floats
    stream_offsets: Integers
    stream_ids: Integers
    successor_offsets: Integers
    successors: Integers
    flow_offsets: Integers
    flow_links: Integers
    flow_bytes_per_s: Floats
    overlaps: Flags
    alloc_bytes: Floats
    free_bytes: Floats
    stream_class: Integers


def columns_of(graph: ExecutionGraph) -> Columns:
    """Return the columns with exactly the types and layout that the kernels are compiled for."""
    types = {"kind": np.int8, "overlaps": np.bool_}
    floats = {"latency_s", "work_s", "flow_bytes_per_s", "alloc_bytes", "free_bytes"}
    types |= dict.fromkeys(floats, np.float64)
    names = ("flow_offsets", "flow_links", "flow_bytes_per_s")
    flows = dict(zip(names, crowdable_flows(graph), strict=True))
    return Columns(
        *(
            np.require(
                flows.get(name, getattr(graph, name)), types.get(name, np.int64), ("C", "A", "W")
            )
            for name in Columns._fields
        )
    )


def empty_board(graph: ExecutionGraph, slots: int) -> Board:
    """Return empty state buffers, with the memory of each class at its static memory."""
    streams, classes = len(graph.stream_class), len(graph.class_ranks)
    board = Board(
        tasks=_empty_aligned(graph.tasks, TASK),
        unmet=np.zeros(graph.tasks, np.int32),
        seats=np.empty(len(graph.stream_ids), SEAT),
        slots=np.zeros(slots, SLOT),
        free_slots=np.arange(slots, -1, -1, dtype=np.int64),
        dirty=_stack(slots),
        classes=np.zeros(classes, RANK_CLASS),
        touched=_stack(classes),
        stream_slot=np.full(streams, -1, np.int64),
        last_seat=np.full(streams, -1, np.int64),
        last_task=np.full(classes, -1, np.int64),
        ready=_stack(graph.tasks),
        class_offsets=_class_offsets(graph),
        class_streams=np.argsort(graph.stream_class, kind="stable").astype(np.int64),
        compute_rate=float(graph.compute_rate_while_communicating),
        communication_rate=float(graph.communication_rate_while_computing),
    )
    board.free_slots[0] = slots
    board.classes["level_bytes"] = board.classes["peak_bytes"] = graph.static_bytes
    board.classes["peak_task"] = -1
    return board


def _busiest(graph: ExecutionGraph) -> Floats:
    """Return the flow of each task on its busiest link, `(T,)`; empty if every flow is 1."""
    if graph.flow_counts is None:
        return np.zeros(0)
    of_one = graph.flow_largest_bytes_per_s
    if of_one is None:
        of_one = graph.flow_bytes_per_s / np.where(graph.flow_counts > 0, graph.flow_counts, 1.0)
    some = np.diff(graph.flow_offsets) > 0
    found = np.zeros(graph.tasks)
    found[some] = np.maximum.reduceat(of_one, graph.flow_offsets[:-1][some]) if some.any() else 0
    return found


def empty_network(graph: ExecutionGraph, columns: Columns, slots: int) -> FlowNetwork:
    """Return the links without flows."""
    capacity = int(np.diff(columns.flow_offsets).max(initial=0))
    count = len(graph.link_bandwidth_bytes_per_s)
    links = np.zeros(count, LINK)
    links["bandwidth_bytes_per_s"] = graph.link_bandwidth_bytes_per_s
    links["first"] = links["last"] = -1
    return FlowNetwork(
        links=links,
        nodes=np.empty(slots * capacity, NODE),
        capacity=capacity,
        flow_links=columns.flow_links,
        flow_bytes_per_s=columns.flow_bytes_per_s,
        busiest_bytes_per_s=np.require(_busiest(graph), np.float64, ("C", "A", "W")),
        touched=_stack(count),
        members=_stack(slots),
        crowded=_stack(count),
        visit=np.zeros(1, np.int64),
    )


def empty_queue(capacity: int) -> Queue:
    """Return a queue with space for one event per running task."""
    queue = Queue(
        time_s=np.full(capacity + 2, np.inf),
        order=_stack(capacity + 1),
        run=_stack(capacity),
        events=np.zeros(capacity, EVENT),
        runs=np.zeros(capacity, RUN),
        free_runs=np.arange(capacity, -1, -1, dtype=np.int64),
        newest=np.full(1, -1, np.int64),
    )
    queue.events["run"] = -1
    queue.free_runs[0] = capacity
    return queue


def slots_needed(graph: ExecutionGraph) -> int:
    """Return the maximum number of running tasks: one per stream, plus tasks without a stream."""
    free_tasks = int((graph.stream_offsets[1:] == graph.stream_offsets[:-1]).sum())
    return len(graph.stream_class) + free_tasks


def _class_offsets(graph: ExecutionGraph) -> Integers:
    sizes = np.bincount(graph.stream_class, minlength=len(graph.class_ranks))
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def _empty_aligned(count: int, record: np.dtype[np.void]) -> NDArray[np.void]:
    """Return records aligned to cache lines, so that none straddles two."""
    line_bytes = 64
    raw = np.empty(count * record.itemsize + line_bytes, np.uint8)
    skip = -raw.ctypes.data % line_bytes
    return raw[skip : skip + count * record.itemsize].view(record)


def _stack(capacity: int) -> Integers:
    return np.zeros(capacity + 1, np.int64)


@part
def lay_out(columns: Columns, board: Board) -> None:
    """Copy a graph into the engine's layout and count the dependencies of every task."""
    _copy_tasks(columns, board.tasks)
    _seat_tasks(columns, board)
    for successor in columns.successors:
        board.unmet[successor] += 1


@part
def _copy_tasks(columns: Columns, tasks: NDArray[np.void]) -> None:
    for t in range(len(tasks)):
        task = tasks[t]
        task.latency_s = columns.latency_s[t]
        task.work_s = columns.work_s[t]
        task.alloc_bytes = columns.alloc_bytes[t]
        task.free_bytes = columns.free_bytes[t]
        task.seats = columns.stream_offsets[t]
        task.seats_end = columns.stream_offsets[t + 1]
        task.successors = columns.successor_offsets[t]
        task.successors_end = columns.successor_offsets[t + 1]
        task.flows = columns.flow_offsets[t]
        task.flows_end = columns.flow_offsets[t + 1]
        task.kind = columns.kind[t]
        task.overlaps = columns.overlaps[t]


@part
def _seat_tasks(columns: Columns, board: Board) -> None:
    """Chain the tasks of each stream by id: the stream's order is one more dependency."""
    for t in range(len(board.tasks)):
        for k in range(columns.stream_offsets[t], columns.stream_offsets[t + 1]):
            stream = columns.stream_ids[k]
            rank_class = columns.stream_class[stream]
            seat = board.seats[k]
            seat.stream = stream
            seat.after = -1
            seat.rank_class = -1 if board.last_task[rank_class] == t else rank_class
            board.last_task[rank_class] = t
            if board.last_seat[stream] >= 0:
                board.seats[board.last_seat[stream]].after = t
                board.unmet[t] += 1
            board.last_seat[stream] = k
