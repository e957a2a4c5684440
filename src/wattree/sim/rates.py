"""Rates of running tasks: overlap within a rank class, and shares of links.

Counters of each rank class follow every begin and end of work. Only where a counter has left or
reached zero between two instants do rates of running tasks change because of overlap.
"""

from __future__ import annotations

import numpy as np

from wattree.compiled import part
from wattree.graph import TaskKind
from wattree.sim.events import schedule
from wattree.sim.layout import AT_WORK, Board, FlowNetwork, Queue, Record
from wattree.sim.sharing import join_links, leave_links, solve_shares

_COMPUTE, _HOST = int(TaskKind.COMPUTE), int(TaskKind.HOST)


@part
def begin_work(board: Board, network: FlowNetwork, slot: int, now_s: float) -> None:
    """Start the work of a task; its rate is set at the end of the instant."""
    state = board.slots[slot]
    task = board.tasks[state.task]
    state.phase = AT_WORK
    state.rate = 0.0
    state.remaining_s = task.work_s
    state.since_s = now_s
    state.share = 1.0
    state.slowed = 0
    _mark(board, slot)
    _count(board, task, 1, slot)
    if task.flows < task.flows_end:
        join_links(network, board.slots, slot, task.flows, task.flows_end)


@part
def end_work(board: Board, network: FlowNetwork, slot: int) -> None:
    """Remove a finished task from its links and from the counts."""
    task = board.tasks[board.slots[slot].task]
    _count(board, task, -1, -1)
    if task.flows < task.flows_end:
        leave_links(network, board.slots, slot)


@part
def _count(board: Board, task: Record, change: int, slot: int) -> None:
    """Add an overlapping task to the counts of its classes, or remove it."""
    if task.kind != _COMPUTE and (task.kind == _HOST or not task.overlaps):
        return
    for k in range(task.seats, task.seats_end):
        seat = board.seats[k]
        board.stream_slot[seat.stream] = slot
        if seat.rank_class >= 0:
            rank_class = board.classes[seat.rank_class]
            if task.kind == _COMPUTE:
                rank_class.computes += change
            else:
                rank_class.communications += change
            if not rank_class.touched:
                rank_class.touched = 1
                board.touched[0] += 1
                board.touched[board.touched[0]] = seat.rank_class


@part
def _mark(board: Board, slot: int) -> None:
    """Mark a slot whose rate must be updated at the end of the instant."""
    if not board.slots[slot].dirty:
        board.slots[slot].dirty = 1
        board.dirty[0] += 1
        board.dirty[board.dirty[0]] = slot


@part
def settle(
    board: Board, network: FlowNetwork, queue: Queue, now_s: float, is_proteus: bool
) -> None:
    """Update the rates that change at the end of an instant, and the end times that follow."""
    for i in range(1, board.touched[0] + 1):
        _notice_overlap(board, board.touched[i])
    board.touched[0] = 0
    if network.touched[0] > 0:
        solve_shares(network, board.slots, board.dirty, is_proteus)
    for i in range(1, board.dirty[0] + 1):
        slot = board.dirty[i]
        state = board.slots[slot]
        state.dirty = 0
        factor = _overlap_factor(board, slot)
        if is_proteus:
            if factor < 1.0 and not state.slowed:
                more = 1.0 / factor - 1.0 if factor > 0.0 else np.inf  # 0: it never ends
                _lengthen(state, board.tasks[state.task].work_s * more, now_s)
            factor = 1.0
        _set_rate(queue, slot, state, state.share * factor, now_s)
    board.dirty[0] = 0


@part
def _notice_overlap(board: Board, rank_class: int) -> None:
    """Mark the tasks whose overlap partner appeared or vanished since the last instant."""
    state = board.classes[rank_class]
    state.touched = 0
    computing, communicating = state.computes > 0, state.communications > 0
    slows_communication = computing != state.computing and communicating
    slows_compute = communicating != state.communicating and computing
    state.computing = computing
    state.communicating = communicating
    if not (slows_communication or slows_compute):
        return
    for i in range(board.class_offsets[rank_class], board.class_offsets[rank_class + 1]):
        slot = board.stream_slot[board.class_streams[i]]
        if slot >= 0:
            _mark(board, slot)


@part
def _overlap_factor(board: Board, slot: int) -> float:
    """Return the factor on a task's rate due to overlap: rules 3 and 4."""
    task = board.tasks[board.slots[slot].task]
    if task.kind == _COMPUTE:
        for k in range(task.seats, task.seats_end):
            c = board.seats[k].rank_class
            if c >= 0 and board.classes[c].communicating:
                return board.compute_rate
        return 1.0
    if task.kind != _HOST and task.overlaps:
        for k in range(task.seats, task.seats_end):
            c = board.seats[k].rank_class
            if c >= 0 and board.classes[c].computing:
                return board.communication_rate
    return 1.0


@part
def _lengthen(state: Record, by_s: float, now_s: float) -> None:
    """Add to the remaining work of a task; its end follows from its next rate."""
    left_s = max(0.0, state.remaining_s - (now_s - state.since_s) * state.rate)
    state.remaining_s = left_s + by_s
    state.since_s = now_s
    state.rate = 0.0
    state.slowed = 1


@part
def _set_rate(queue: Queue, slot: int, state: Record, rate: float, now_s: float) -> None:
    """Set a rate and the end that follows; an unchanged rate leaves the end bit-identical."""
    if not rate > 0.0:  # NaN, too, is a standstill: halt_error names who is left in one
        rate = 0.0
    if rate == state.rate:
        return
    state.remaining_s = max(0.0, state.remaining_s - (now_s - state.since_s) * state.rate)
    state.since_s = now_s
    state.rate = rate
    end_s = now_s + state.remaining_s / rate if rate > 0.0 else np.inf
    schedule(queue, slot, state.task, end_s)
