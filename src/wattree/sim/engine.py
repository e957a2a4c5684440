"""The executor: simulates an execution graph event by event, in compiled code.

An instant is handled as a whole: first everything that happens at it, in the order of rule 5,
then rates once, and only of tasks whose surroundings changed. No memory is allocated and no
Python runs between the first event and the last. Its plain twin is `tests/sim/reference.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.compiled import intrinsic, kernel, part
from wattree.graph import ExecutionGraph, TaskKind
from wattree.sim.checks import check_graph
from wattree.sim.deadlock import halt_error
from wattree.sim.events import (
    first_slot,
    is_only_event,
    pop_event,
    pop_task,
    push_task,
    replace_first,
    schedule,
)
from wattree.sim.layout import (
    AT_WORK,
    BEFORE_WORK,
    WITHOUT_WORK,
    Board,
    Columns,
    FlowNetwork,
    Queue,
    Record,
    columns_of,
    empty_board,
    empty_network,
    empty_queue,
    lay_out,
    slots_needed,
)
from wattree.sim.policies import check_sharing, flows_under, without_slowdown
from wattree.sim.rates import begin_work, end_work, settle
from wattree.sim.rules import EVENT_KINDS, EventKind
from wattree.trace import Trace

# Arguments of llvm.prefetch: to be read, soon and again, as data.
_READ, _KEEP, _DATA = 0, 3, 1


# Kernels call it as `fetch_ahead(array, index)`; numba adds the context of its types.
@intrinsic
def fetch_ahead(_context: Any, array: Any, _index: Any = None) -> Any:
    """Prefetch the cache line of an element.

    It changes no result. Ranks that are not in lock-step are executed a quarter faster with it.
    """
    import numba
    from llvmlite import ir

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array_type, flag = signature.args[0], ir.IntType(32)
        elements = context.make_array(array_type)(context, builder, values[0]).data
        size = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
        byte: Any = ir.IntType(8).as_pointer()
        offset = builder.mul(values[1], ir.Constant(ir.IntType(64), size))
        address = builder.gep(builder.bitcast(elements, byte), [offset])
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        )
        builder.call(prefetch, [address, flag(_READ), flag(_KEEP), flag(_DATA)])
        return context.get_dummy_value()

    return numba.types.none(array, numba.types.int64), generate


_END, _WORK, _START = int(EventKind.END), int(EventKind.WORK), int(EventKind.START)
_COMPUTE = int(TaskKind.COMPUTE)


class _Record(NamedTuple):
    """Recorded results: times, the number of events, and their order if `log` has space."""

    start_s: Floats
    end_s: Floats
    events: Integers
    log: Integers


def execute(
    graph: ExecutionGraph, *, sharing: str = "max-min", mutual_slowdown: bool = True
) -> Trace:
    """Return when every task starts and ends, and the peak memory of every rank class.

    Args:
        graph: What to play; its rules are in `wattree.graph.execution_graph`.
        sharing: What happens where flows meet on a link: `max-min` (rule 4), `proteus` or `none`.
        mutual_slowdown: Computation and communication of a rank slow each other; if not, they
            run side by side as if alone.

    Raises:
        SimulationError: The graph is malformed or comes to a deadlock.
        UnknownNameError: There is no such sharing policy.
    """
    graph = graph if mutual_slowdown else without_slowdown(graph)
    return _execute(graph, sharing, np.empty(0, np.int64))


def execute_events(graph: ExecutionGraph, *, sharing: str = "max-min") -> tuple[Trace, Integers]:
    """Return the trace and every event in its order, as `task * EVENT_KINDS + EventKind`."""
    log = np.empty(graph.tasks * EVENT_KINDS, np.int64)
    trace = _execute(graph, sharing, log)
    return trace, log[: trace.events]


def _execute(graph: ExecutionGraph, sharing: str, log: Integers) -> Trace:
    check_sharing(sharing)
    check_graph(graph)
    return executed(graph, sharing, log)


def executed(graph: ExecutionGraph, sharing: str, log: Integers) -> Trace:
    """Return the trace of a checked graph; write its events to `log` if it has space.

    Raises:
        SimulationError: The graph comes to a deadlock.
    """
    seen = flows_under(graph, sharing)
    columns = columns_of(seen)
    slots = slots_needed(graph)
    board, network = empty_board(graph, slots), empty_network(seen, columns, slots)
    record = _Record(
        start_s=np.full(graph.tasks, np.nan),
        end_s=np.full(graph.tasks, np.nan),
        events=np.zeros(1, np.int64),
        log=log,
    )
    _run(columns, board, network, empty_queue(slots), record, sharing == "proteus")
    if np.isnan(record.end_s).any():
        raise halt_error(graph, ~np.isnan(record.start_s), ~np.isnan(record.end_s))
    return Trace(
        graph=graph,
        start_s=record.start_s,
        end_s=record.end_s,
        peak_bytes=board.classes["peak_bytes"].copy(),
        peak_task=board.classes["peak_task"].astype(np.int64),
        events=int(record.events[0]),
    )


@kernel
def _run(
    columns: Columns,
    board: Board,
    network: FlowNetwork,
    queue: Queue,
    record: _Record,
    is_proteus: bool,
) -> None:
    lay_out(columns, board)
    _find_first_tasks(board)
    now_s = 0.0
    while True:
        if queue.order[0] > 0 and queue.time_s[1] == now_s:  # ends before starts
            may_continue = not is_proteus and board.ready[0] == 0 and is_only_event(queue)
            if may_continue and _continue(columns.successors, board, network, queue, record):
                continue
            slot = pop_event(queue)
            if board.slots[slot].phase == BEFORE_WORK:
                _note(record, board.slots[slot].task, _WORK)
                begin_work(board, network, slot, now_s)
            else:
                _leave(board, network, slot)
                _end(columns.successors, board, record, board.slots[slot].task, now_s)
        elif board.ready[0] > 0:
            task = pop_task(board.ready)
            if not _start(board, network, queue, record, task, now_s):
                _end(columns.successors, board, record, task, now_s)
        else:
            settle(board, network, queue, now_s, is_proteus)
            if not queue.time_s[1] < np.inf:  # nothing is left to happen, or nothing ever will
                break
            now_s = queue.time_s[1]


@part
def _find_first_tasks(board: Board) -> None:
    """Mark tasks without dependencies as ready."""
    for task in range(len(board.tasks)):
        if board.unmet[task] == 0:
            push_task(board.ready, task)


@part
def _note(record: _Record, task: int, kind: int) -> None:
    if len(record.log) > 0:
        record.log[record.events[0]] = task * EVENT_KINDS + kind
    record.events[0] += 1


@part
def _start(
    board: Board, network: FlowNetwork, queue: Queue, record: _Record, task: int, now_s: float
) -> bool:
    """Start a task; return False if it ends at once, before anything else can happen."""
    _note(record, task, _START)
    record.start_s[task] = now_s
    spec = board.tasks[task]
    if spec.alloc_bytes != 0.0:
        _allocate(board, task)
    if spec.work_s == 0.0 and now_s + spec.latency_s == now_s:
        return False
    slot = _take_slot(board, task)
    _fetch_following(board, record, spec)
    if spec.work_s > 0.0 and spec.latency_s == 0.0:
        begin_work(board, network, slot, now_s)
    elif spec.work_s > 0.0:
        board.slots[slot].phase = BEFORE_WORK
        schedule(queue, slot, len(board.tasks) + task, now_s + spec.latency_s)
    else:
        board.slots[slot].phase = WITHOUT_WORK
        schedule(queue, slot, task, now_s + spec.latency_s)
    return True


@part
def _fetch_following(board: Board, record: _Record, spec: Record) -> None:
    """Prefetch the tasks that will most likely start next: the successors on the task's streams."""
    for k in range(spec.seats, spec.seats_end):
        if board.seats[k].after >= 0:
            fetch_ahead(board.tasks, board.seats[k].after)
            fetch_ahead(record.start_s, board.seats[k].after)


@part
def _take_slot(board: Board, task: int) -> int:
    slot: int = board.free_slots[board.free_slots[0]]
    board.free_slots[0] -= 1
    board.slots[slot].task = task
    return slot


@part
def _leave(board: Board, network: FlowNetwork, slot: int) -> None:
    """Remove a task that ends from the running state."""
    if board.slots[slot].phase == AT_WORK:
        end_work(board, network, slot)
    board.free_slots[0] += 1
    board.free_slots[board.free_slots[0]] = slot


@part
def _end(
    successors: Integers,
    board: Board,
    record: _Record,
    task: int,
    now_s: float,
) -> None:
    """End a task: free its memory; release the next tasks on its streams and its successors."""
    _note(record, task, _END)
    record.end_s[task] = now_s
    spec = board.tasks[task]
    if spec.free_bytes != 0.0:
        _free(board, task)
    for k in range(spec.seats, spec.seats_end):
        if board.seats[k].after >= 0:
            _meet(board, board.seats[k].after)
    for k in range(spec.successors, spec.successors_end):
        _meet(board, successors[k])


@part
def _meet(board: Board, task: int) -> None:
    """Remove one dependency of a task; the task starts at this instant when none is left."""
    board.unmet[task] -= 1
    if board.unmet[task] == 0:
        push_task(board.ready, task)


@part
def _continue(
    successors: Integers, board: Board, network: FlowNetwork, queue: Queue, record: _Record
) -> bool:
    """Let the next computation of a stream replace one that ends; return whether it can.

    It can where nothing else happens at the instant, as is known of events, and the two wait for
    each other alone: what runs alongside stays as it is, and with it the rate, to the last bit.
    """
    state = board.slots[first_slot(queue)]
    pending = board.dirty[0] + board.touched[0] + network.touched[0]
    if pending > 0 or state.phase != AT_WORK:
        return False
    following = _only_follower(successors, board, state.task)
    if following < 0:
        return False
    now_s, spec = queue.time_s[1], board.tasks[following]
    _note(record, state.task, _END)
    record.end_s[state.task] = now_s
    if board.tasks[state.task].free_bytes != 0.0:
        _free(board, state.task)
    board.unmet[following] = 0
    _note(record, following, _START)
    record.start_s[following] = now_s
    if spec.alloc_bytes != 0.0:
        _allocate(board, following)
    _fetch_following(board, record, spec)
    state.task = following
    state.remaining_s = spec.work_s
    state.since_s = now_s
    replace_first(queue, following, now_s + spec.work_s / state.rate)
    return True


@part
def _only_follower(successors: Integers, board: Board, task: int) -> int:
    """Return the computation that starts when one ends, if it has no other dependency; else -1."""
    spec = board.tasks[task]
    if spec.kind != _COMPUTE or spec.seats_end - spec.seats != 1:
        return -1
    following, count = board.seats[spec.seats].after, spec.successors_end - spec.successors
    if following < 0 or count > 1 or board.unmet[following] != 1 + count:
        return -1
    other = board.tasks[following]
    is_next = count == 0 or successors[spec.successors] == following
    is_plain = other.kind == _COMPUTE and other.seats_end - other.seats == 1
    works_at_once = other.latency_s == 0.0 and other.work_s > 0.0
    return following if is_next and is_plain and works_at_once else -1


@part
def _allocate(board: Board, task: int) -> None:
    spec = board.tasks[task]
    for k in range(spec.seats, spec.seats_end):
        if board.seats[k].rank_class >= 0:
            rank_class = board.classes[board.seats[k].rank_class]
            rank_class.level_bytes += spec.alloc_bytes
            if rank_class.level_bytes > rank_class.peak_bytes:
                rank_class.peak_bytes = rank_class.level_bytes
                rank_class.peak_task = task


@part
def _free(board: Board, task: int) -> None:
    spec = board.tasks[task]
    for k in range(spec.seats, spec.seats_end):
        if board.seats[k].rank_class >= 0:
            board.classes[board.seats[k].rank_class].level_bytes -= spec.free_bytes


#: What takes longest to compile.
PLAYER = _run
