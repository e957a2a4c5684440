"""Pass 9: one pipeline stage's whole step: its schedule, transfers, reductions and update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.tasks.chunk import (
    BlockParts,
    ChunkContext,
    dropped_gradients,
    reductions,
    staging_lines,
    update_portions,
)
from wattree.compiler.tasks.chunk_tables import ChunkTables, turns_of
from wattree.compiler.tasks.input_pipeline import input_ahead, input_copies
from wattree.compiler.tasks.ledger import Piece, entries
from wattree.compiler.tasks.pairs import PairedTables
from wattree.compiler.tasks.table import TASK, TaskTable, concatenated, joined
from wattree.compiler.tasks.update import gradients_out, table_updates, update_tasks
from wattree.graph import OperatorClass, Phase, StageLabel, TaskKind
from wattree.lowering.loading import Loading
from wattree.lowering.streams import Stream
from wattree.strategy.schedules import ChunkPlacement, Order, Place, Slot, Work

__all__ = [
    "MIRROR",
    "Handover",
    "Send",
    "StageProgram",
    "Update",
    "stage_program",
]


class Handover(NamedTuple):
    """What a chunk hands to another: the output of a micro-batch, or the gradient of its input."""

    chunk: int
    micro_batch: int
    backward: bool


#: What the copies of a chunk hand each other at the step's end: its gradients.
MIRROR = Handover(-1, -1, True)


class Send(NamedTuple):
    """A transfer to another stage.

    Attributes:
        task: The task that sends.
        stage: To which stage.
        heading: +1 to the next stage's ranks, -1 to the previous one's, 0 to the mirror's.
        received: What the receiver calls it.
    """

    task: int
    stage: int
    heading: int
    received: Handover


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The end of a stage's step.

    Attributes:
        overhead_s: Host time per step that belongs to no operator. [s]
        input_s: Time to read, decode and copy the first micro-batch; only where nothing more is
            known of how data is loaded. [s]
        gradient_bytes: Gradients of what it updates, as they are sent. [B]
        loading: How data is loaded, if that is known.
    """

    overhead_s: float
    input_s: float
    gradient_bytes: float
    loading: Loading | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgram:
    """Tasks of one rank of a stage, in program order, and the ends of its transfers.

    Attributes:
        tasks: Records of dtype `TASK`.
        edges: Index pairs inside the stage.
        sends: Its transfers to other stages.
        receives: What it is handed → the tasks that wait for it.
        pieces: Its slots' tables with their ledgers.
        levels: The same tasks with the figures of ranks of every other level: by the tokens of
            their experts, or by the kind of their device and place.
    """

    tasks: NDArray[np.void]
    edges: NDArray[np.int64]
    sends: tuple[Send, ...]
    receives: Mapping[Handover, tuple[int, ...]]
    pieces: tuple[Piece, ...] = ()
    levels: tuple[NDArray[np.void], ...] = ()

    def behind(self, stages: int) -> StageProgram:
        """Return the program as that of a stage behind so many of other jobs."""
        if not stages:
            return self
        sends = tuple(send._replace(stage=send.stage + stages) for send in self.sends)
        return replace(self, sends=sends)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A slot's table among those of the stage.

    Attributes:
        slot: What is done.
        table: Its tasks.
        at: Number of the table that holds them.
        rows: Where its tasks lie in that table; None: as they are.
        transfer_at: Number of its transfer's table, -1 if it sends nothing.
    """

    slot: Slot
    table: TaskTable
    at: int
    rows: NDArray[np.int64] | None
    transfer_at: int


def stage_program(
    order: Order,
    chunks: Sequence[ChunkTables],
    blocks: Sequence[Sequence[BlockParts]],
    context: ChunkContext,
    update: Update,
    *,
    stage: int,
    placement: ChunkPlacement,
    transfer: np.void,
    handed_bytes: Sequence[Sequence[tuple[float, float]]],
    blocking_transfers: bool,
    pairs: PairedTables,
) -> StageProgram:
    """Return everything one rank of a stage does in a step.

    Args:
        order: What it works on, in order.
        chunks: Tables of its chunks.
        blocks: The blocks of each chunk, for the traffic at the step's end.
        context: How traffic becomes tasks.
        update: The step's end.
        stage: Its number.
        placement: Where the chunks of all stages lie.
        transfer: Record of a transfer to a neighbour, ready but for direction and size.
        handed_bytes: Of each chunk, what crosses the border before it and the one after it for a
            micro-batch, each forward and back. [B]
        blocking_transfers: Compute waits for each transfer (no overlap).
        pairs: Tables of slots that run side by side.
    """
    begins = [Place(stage, c) not in placement.before for c in range(len(chunks))]
    firsts = [slot for slot in order if slot.work is Work.FORWARD and begins[slot.chunk]]
    tables: list[TaskTable] = []
    if firsts and update.loading is not None:
        tables = _loading_tables(context, update.loading, len(firsts))
    elif firsts:
        tables = [_input_table(context, update)]
    keeps = not context.moves.overlap.reshard_after_forward
    returns = [before[1] > 0.0 for before, _ in handed_bytes]
    placed = _place(
        order,
        chunks,
        tables,
        stage=stage,
        placement=placement,
        returns=returns,
        pairs=pairs,
        keeps_gathered=keeps,
    )
    sent = _transfer_table(transfer)
    for at in [item.transfer_at for item in placed if item.transfer_at >= 0]:
        tables[at] = sent
    mirrored_at = len(tables)
    if placement.copies > 1:
        tables.append(_mirror_table(transfer, context, update))
    tail_at = len(tables)
    tables.append(_tail([block for held in blocks for block in held], context, update))
    tasks, edges, offsets = concatenated(tables)
    extra = [edges]
    receives = _receives(placed, offsets, stage=stage, placement=placement)
    sends = _sends(placed, tasks, offsets, handed_bytes, stage=stage, placement=placement)
    extra += _slot_edges(placed, tasks, offsets, receives, stage=stage, placement=placement)
    extra.append(_return_edges(placed, offsets))
    if firsts and update.loading is None:
        extra.append(_input_edges(firsts[:1], placed, offsets, receives))
    elif firsts and len(tables[1].tasks):
        extra.append(_input_edges(firsts, placed, offsets, receives, first=int(offsets[1])))
        extra.append(_copy_edges(firsts, placed, offsets, first=int(offsets[1])))
    tail = int(offsets[tail_at])
    if placement.copies > 1:
        mirror = int(offsets[mirrored_at])
        extra.append(_tail_edges(tasks, mirror))
        receives[MIRROR] = (tail,)
        sends.append(Send(mirror, placement.stages - 1 - stage, 0, MIRROR))
    extra.append(_tail_edges(tasks, tail))
    if blocking_transfers:
        extra.append(_blocking_edges(tasks, sends))
    return StageProgram(
        tasks=tasks,
        edges=np.concatenate(extra),
        sends=tuple(sends),
        receives=receives,
        pieces=(
            *(_piece(item, int(offsets[item.at])) for item in placed),
            Piece(tail, None, 0, 0, tables[tail_at].ledger),
        ),
    )


def _piece(item: _Placed, offset: int) -> Piece:
    return Piece(
        offset=offset,
        rows=item.rows,
        chunk=item.slot.chunk,
        micro_batch=item.slot.micro_batch,
        ledger=item.table.ledger,
    )


def _slot_edges(
    placed: Sequence[_Placed],
    tasks: NDArray[np.void],
    offsets: NDArray[np.int64],
    receives: Mapping[Handover, tuple[int, ...]],
    *,
    stage: int,
    placement: ChunkPlacement,
) -> list[NDArray[np.int64]]:
    """Return the edges between the tables of slots; number the micro-batches of their tasks."""
    edges = []
    ahead: list[int] = []  # the last compute tasks before the item
    for index, item in enumerate(placed):
        offset = int(offsets[item.at])
        tasks["micro_batch"][_rows(item, offset)] = item.slot.micro_batch
        if item.transfer_at >= 0:
            sender = int(offsets[item.transfer_at])
            edges.append(np.array([[_row(item, offset, item.table.exit), sender]]))
        elif item.slot.hands_on and item.table.exit >= 0:
            edges.append(_turn_edges(item, offset, stage, placement, receives))
        edges.append(_prefetch_edges(ahead, item, offset))
        if item.slot.work is Work.WEIGHT_GRADIENT:
            edges.append(_turn_has_come(ahead, item, offset))
        is_half = index + 1 < len(placed) and placed[index + 1].at == item.at
        if item.table.tails and not is_half:
            ahead = [_row(item, offset, tail) for tail in item.table.tails]
    return edges


def _place(
    order: Order,
    chunks: Sequence[ChunkTables],
    tables: list[TaskTable],
    *,
    stage: int,
    placement: ChunkPlacement,
    returns: Sequence[bool],
    pairs: PairedTables,
    keeps_gathered: bool,
) -> list[_Placed]:
    """Append the table of every slot, and room for its transfer, to `tables`.

    `returns` says which chunks send gradients back: before what is trained there are none.
    """
    turns = turns_of(order, keeps_gathered=keeps_gathered)
    placed: list[_Placed] = []

    def room_for_transfer(slot: Slot, table: TaskTable) -> int:
        hops = placement.before if slot.backward else placement.after
        hop = hops.get(Place(stage, slot.chunk)) if slot.hands_on else None
        if hop is None or hop.heading == 0 or table.exit < 0:
            return -1
        if slot.backward and not returns[slot.chunk]:
            return -1
        tables.append(_NO_TASKS)  # filled in once all are known
        return len(tables) - 1

    index = 0
    while index < len(order):
        slots = order[index : index + 1]
        if index + 1 < len(order) and order[index + 1].beside:
            slots = order[index : index + 2]
        own = [
            chunks[slot.chunk].of(slot.work, turn)
            for slot, turn in zip(slots, turns[index:], strict=False)
        ]
        index += len(slots)
        rows: Sequence[NDArray[np.int64] | None] = (None,)
        if len(own) == 2:
            both = pairs.together(*own)
            tables.append(both.table)
            rows = both.rows
        else:
            tables.append(own[0])
        at = len(tables) - 1
        for slot, table, where in zip(slots, own, rows, strict=True):
            placed.append(
                _Placed(
                    slot=slot,
                    table=table,
                    at=at,
                    rows=where,
                    transfer_at=room_for_transfer(slot, table),
                )
            )
    return placed


_NO_TASKS = TaskTable(tasks=np.zeros(0, TASK), edges=np.zeros((0, 2), np.int64))


def _rows(item: _Placed, offset: int) -> NDArray[np.int64] | slice:
    if item.rows is None:
        return slice(offset, offset + len(item.table.tasks))
    return offset + item.rows


def _row(item: _Placed, offset: int, task: int) -> int:
    """Return the number in the stage of a task of the item's own table."""
    return offset + (task if item.rows is None else int(item.rows[task]))


def _receives(
    placed: Sequence[_Placed],
    offsets: NDArray[np.int64],
    *,
    stage: int,
    placement: ChunkPlacement,
) -> dict[Handover, tuple[int, ...]]:
    found = {}
    for item in placed:
        slot, entries = item.slot, item.table.entries
        if not slot.hands_on:
            continue
        is_handed = not slot.backward and Place(stage, slot.chunk) in placement.before
        if not entries and is_handed:  # what comes is for later blocks than the first
            entries = tuple(np.flatnonzero(item.table.tasks["stream"] == Stream.COMPUTE)[:1])
        found[Handover(slot.chunk, slot.micro_batch, slot.backward)] = tuple(
            _row(item, int(offsets[item.at]), int(entry)) for entry in entries
        )
    return found


def _sends(
    placed: Sequence[_Placed],
    tasks: NDArray[np.void],
    offsets: NDArray[np.int64],
    handed_bytes: Sequence[Sequence[tuple[float, float]]],
    *,
    stage: int,
    placement: ChunkPlacement,
) -> list[Send]:
    """Return the transfers to other stages, their directions and sizes set in `tasks`."""
    sends = []
    for item in placed:
        if item.transfer_at < 0:
            continue
        slot, task = item.slot, int(offsets[item.transfer_at])
        hops = placement.before if slot.backward else placement.after
        hop = hops[Place(stage, slot.chunk)]
        tasks["stream"][task] = Stream.SEND_NEXT if hop.heading > 0 else Stream.SEND_PREVIOUS
        tasks["phase"][task] = Phase.BACKWARD if slot.backward else Phase.FORWARD
        tasks["micro_batch"][task] = slot.micro_batch
        before, after = handed_bytes[slot.chunk]
        tasks["wire_bytes"][task] = before[1] if slot.backward else after[0]
        received = Handover(hop.place.chunk, slot.micro_batch, slot.backward)
        sends.append(Send(task, hop.place.stage, hop.heading, received))
    return sends


def _turn_edges(
    item: _Placed,
    offset: int,
    stage: int,
    placement: ChunkPlacement,
    receives: Mapping[Handover, tuple[int, ...]],
) -> NDArray[np.int64]:
    """What is handed on inside a stage (the turn of a V) is there at once."""
    slot = item.slot
    hops = placement.before if slot.backward else placement.after
    hop = hops.get(Place(stage, slot.chunk))
    if hop is None:
        return np.zeros((0, 2), np.int64)
    done = _row(item, offset, item.table.exit)
    entries = receives[Handover(hop.place.chunk, slot.micro_batch, slot.backward)]
    return np.array([(done, entry) for entry in entries], dtype=np.int64).reshape(-1, 2)


def _turn_has_come(ahead: Sequence[int], item: _Placed, offset: int) -> NDArray[np.int64]:
    """What starts a weight gradient beside the compute stream waits for the work before it."""
    pairs = [(ahead[-1], _row(item, offset, e)) for e in item.table.entries] if ahead else []
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _transfer_table(transfer: np.void) -> TaskTable:
    task = np.array([transfer], TASK)
    return TaskTable(tasks=task, edges=np.zeros((0, 2), np.int64), exit=0)


def _mirror_table(transfer: np.void, context: ChunkContext, update: Update) -> TaskTable:
    """Return the exchange of gradients with the stage that holds the same chunks.

    Each side sends what its replicas have reduced and adds what it gets: the bytes of an
    all-reduce between two. Of gradients that are sharded over replicas, each rank sends its shard.
    """
    task = np.array([transfer], TASK)
    task["stream"], task["phase"] = Stream.REDUCE, Phase.SYNCHRONIZATION
    task["name"], task["micro_batch"] = context.name("gradients.mirror"), -1
    task["wire_bytes"] = update.gradient_bytes
    task["operator_class"] = OperatorClass.GRADIENT_SYNC
    return TaskTable(tasks=task, edges=np.zeros((0, 2), np.int64), exit=0)


def _prefetch_edges(ahead: Sequence[int], item: _Placed, offset: int) -> NDArray[np.int64]:
    """Parameter gathers and copies in run as far ahead across micro-batches as inside one."""
    if not ahead:
        return np.zeros((0, 2), np.int64)
    gathers = [_row(item, offset, gather) for gather in item.table.prefetch]
    tails = [*[ahead[0]] * (len(gathers) - len(ahead)), *ahead]
    pairs = list(zip(tails[-len(gathers) :], gathers, strict=False)) if gathers else []
    pairs += [
        (ahead[-min(back, len(ahead))], _row(item, offset, copy)) for copy, back in item.table.early
    ]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _return_edges(placed: Sequence[_Placed], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """What was copied out comes back after it has arrived there."""
    stored: dict[tuple[int, int], list[int]] = {}
    pairs: list[tuple[int, int]] = []
    for item in placed:
        offset, key = int(offsets[item.at]), (item.slot.chunk, item.slot.micro_batch)
        if item.table.stored:
            stored[key] = [_row(item, offset, copy) for copy in item.table.stored]
        if item.table.fetched:
            back = [_row(item, offset, copy) for copy in item.table.fetched]
            pairs += zip(reversed(stored[key]), back, strict=True)
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _host_task(context: ChunkContext, name: str, time_s: float, *, materials: bool) -> np.ndarray:
    task = np.zeros(1, TASK)
    task["kind"], task["stream"], task["axes"] = TaskKind.HOST, Stream.HOST, -1
    task["phase"] = Phase.MATERIALS if materials else Phase.OPTIMIZER
    task["stage"] = StageLabel.MATERIALS if materials else StageLabel.COMPUTING
    task["name"], task["work_s"], task["micro_batch"] = context.name(name), time_s, -1
    task["operator_class"] = OperatorClass.READING if materials else OperatorClass.HOST
    return task


def _input_table(context: ChunkContext, update: Update) -> TaskTable:
    task = _host_task(context, "input", update.input_s, materials=True)
    return TaskTable(tasks=task, edges=np.zeros((0, 2), np.int64), exit=0)


def _loading_tables(context: ChunkContext, loading: Loading, count: int) -> list[TaskTable]:
    """Return what loaders do beside the step, and the copies that the step waits for."""
    parts = [input_ahead(loading, count, context.name), input_copies(loading, count, context.name)]
    return [TaskTable(tasks=part, edges=np.zeros((0, 2), np.int64)) for part in parts]


def _input_edges(
    firsts: Sequence[Slot],
    placed: Sequence[_Placed],
    offsets: NDArray[np.int64],
    receives: Mapping[Handover, tuple[int, ...]],
    *,
    first: int = 0,
) -> NDArray[np.int64]:
    """Let forwards that begin the model wait for their input: task `first` and those behind it."""
    at = {item.slot: int(offsets[item.at]) for item in placed}
    pairs = []
    for number, slot in enumerate(firsts):
        waits = receives[Handover(slot.chunk, slot.micro_batch, False)] or (at[slot],)
        pairs += [(first + number, entry) for entry in waits]
    return np.array(pairs, dtype=np.int64)


def _copy_edges(
    firsts: Sequence[Slot],
    placed: Sequence[_Placed],
    offsets: NDArray[np.int64],
    *,
    first: int,
) -> NDArray[np.int64]:
    """Let each copy that is waited for begin when the computation before it has ended."""
    numbers, pairs, tail = {slot: number for number, slot in enumerate(firsts)}, [], -1
    for item in placed:
        if item.slot in numbers and tail >= 0:
            pairs.append((tail, first + numbers[item.slot]))
        if item.table.tails:
            tail = _row(item, int(offsets[item.at]), item.table.tails[-1])
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _tail(blocks: Sequence[BlockParts], context: ChunkContext, update: Update) -> TaskTable:
    """Reductions that nothing hid, the optimiser, gathers that nothing hides, the overhead."""
    moves, storages = context.moves, [block.storage for block in blocks]
    parts, lines = [], []
    if not moves.overlap.gradients:
        late = [g for storage in storages for g in storage.sync if not g.every_micro_batch]
        parts.append(reductions(late, context))
        lines += staging_lines(parts[0], 0, context)
        if moves.offload.optimizer is not None:
            parts.append(gradients_out(storages, moves, context.name))
            lines += dropped_gradients(blocks, len(parts[0]), context)
    if not moves.early_updates:
        parts += update_tasks(storages, moves, context.name, frees=False)
    parts += table_updates(storages, moves, context.name)
    if not moves.overlap.parameters:
        parts += update_portions(storages, context)
    parts.append(_host_task(context, "step overhead", update.overhead_s, materials=False))
    tasks = joined(parts)
    chain = np.array([(i, i + 1) for i in range(len(tasks) - 1)], dtype=np.int64).reshape(-1, 2)
    return TaskTable(tasks=tasks, edges=chain, ledger=entries(lines))


def _tail_edges(tasks: NDArray[np.void], tail: int) -> NDArray[np.int64]:
    """The step's end waits for the last task on each stream before it.

    Not for what later steps need, which may go on until the end of all tasks: the next step begins
    when all of them are done.
    """
    streams = tasks["stream"][:tail].copy()
    streams[tasks["phase"][:tail] == Phase.PREFETCH] = -1
    lasts = [int(np.flatnonzero(streams == s)[-1]) for s in np.unique(streams) if s >= 0]
    return np.array([(last, tail) for last in lasts], dtype=np.int64).reshape(-1, 2)


def _blocking_edges(tasks: NDArray[np.void], sends: Sequence[Send]) -> NDArray[np.int64]:
    """Without overlap, the next compute task waits for the transfer before it."""
    computes = np.flatnonzero(tasks["stream"] == Stream.COMPUTE)
    pairs = []
    for send in sends:
        after = int(np.searchsorted(computes, send.task))
        if after < len(computes):
            pairs.append((send.task, int(computes[after])))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)
