"""Pass 9: one pipeline stage's whole step: its schedule, transfers, reductions and update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.chunk import (
    BlockParts,
    ChunkContext,
    chunk_backward,
    chunk_forward,
    reductions,
    updates,
)
from wattree.compiler.tasks import TASK, Stream, TaskTable, concatenated
from wattree.graph import Phase, StageLabel, TaskKind
from wattree.strategy.schedules import Slot

__all__ = ["ChunkTables", "StageProgram", "Update", "chunk_tables", "stage_program"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTables:
    """Task tables of one chunk, by what the micro-batch calls for.

    Attributes:
        forward: Of a micro-batch; `[0]` of the first one, `[1]` of any other.
        backward: `[0]` of the last micro-batch, `[1]` of any other.
    """

    forward: tuple[TaskTable, TaskTable]
    backward: tuple[TaskTable, TaskTable]


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The end of a stage's step.

    Attributes:
        time_s: Of the optimiser's pass over memory. [s]
        traffic_bytes: What it moves. [B]
        overhead_s: Host time per step that belongs to no operator. [s]
        input_s: Time to read, decode and copy the first micro-batch. [s]
    """

    time_s: float
    traffic_bytes: float
    overhead_s: float
    input_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgram:
    """Tasks of one rank of a stage, in program order, and the ends of its transfers.

    Attributes:
        tasks: Records of dtype `TASK`.
        edges: Index pairs inside the stage.
        sends: (chunk, micro-batch, backward) → the transfer that hands its result on.
        receives: (chunk, micro-batch, backward) → tasks that wait for the neighbour's transfer.
    """

    tasks: NDArray[np.void]
    edges: NDArray[np.int64]
    sends: dict[Slot, int]
    receives: dict[Slot, tuple[int, ...]]


def chunk_tables(blocks: Sequence[BlockParts], context: ChunkContext) -> ChunkTables:
    """Return the task tables of a chunk."""
    return ChunkTables(
        forward=(
            chunk_forward(blocks, context, first_micro_batch=True),
            chunk_forward(blocks, context, first_micro_batch=False),
        ),
        backward=(
            chunk_backward(blocks, context, last_micro_batch=True),
            chunk_backward(blocks, context, last_micro_batch=False),
        ),
    )


def stage_program(
    order: Sequence[Slot],
    chunks: Sequence[ChunkTables],
    blocks: Sequence[BlockParts],
    context: ChunkContext,
    update: Update,
    *,
    is_first: bool,
    is_last: bool,
    micro_batches: int,
    transfer: np.void,
    blocking_transfers: bool,
) -> StageProgram:
    """Return everything one rank of a stage does in a step.

    Args:
        order: What it works on, in order.
        chunks: Tables of its chunks, by virtual stage.
        blocks: All its blocks, for the traffic at the step's end.
        context: How traffic becomes tasks.
        update: The step's end.
        is_first, is_last: Its first chunk starts the model; its last chunk ends it.
        micro_batches: Per step.
        transfer: Record of a transfer to a neighbour, ready but for direction.
        blocking_transfers: Compute waits for each transfer (no overlap).
    """
    tables: list[TaskTable] = [_input_table(context, update)] if is_first else []
    placed: list[tuple[Slot, int, int]] = []  # slot, its table, its transfer's table or -1
    for slot in order:
        chunk = chunks[slot.chunk]
        first, last = slot.micro_batch == 0, slot.micro_batch == micro_batches - 1
        table = (
            chunk.backward[0 if last else 1] if slot.backward else chunk.forward[0 if first else 1]
        )
        tables.append(table)
        at = len(tables) - 1
        hands_on = _hands_on(slot, len(chunks), is_first=is_first, is_last=is_last)
        if hands_on and table.exit >= 0:
            tables.append(_transfer_table(transfer, backward=slot.backward))
        placed.append((slot, at, len(tables) - 1 if hands_on and table.exit >= 0 else -1))
    tail_at = len(tables)
    tables.append(_tail(blocks, context, update))
    tasks, edges, offsets = concatenated(tables)
    extra = [edges]
    sends: dict[Slot, int] = {}
    receives: dict[Slot, tuple[int, ...]] = {}
    previous: tuple[TaskTable, int] | None = None
    for slot, at, transfer_at in placed:
        table, offset = tables[at], int(offsets[at])
        tasks["micro_batch"][offset : offset + len(table.tasks)] = slot.micro_batch
        receives[slot] = tuple(offset + entry for entry in table.entries)
        if transfer_at >= 0:
            sends[slot] = int(offsets[transfer_at])
            tasks["micro_batch"][sends[slot]] = slot.micro_batch
            extra.append(np.array([[offset + table.exit, sends[slot]]]))
        if previous is not None:
            extra.append(_prefetch_edges(previous, (table, offset)))
        previous = table, offset
    if is_first:
        extra.append(_input_edges(order, receives))
    extra.append(_tail_edges(tasks, int(offsets[tail_at])))
    if blocking_transfers:
        extra.append(_blocking_edges(tasks, sends))
    return StageProgram(tasks=tasks, edges=np.concatenate(extra), sends=sends, receives=receives)


def _hands_on(slot: Slot, chunks: int, *, is_first: bool, is_last: bool) -> bool:
    if slot.backward:
        return not (is_first and slot.chunk == 0)
    return not (is_last and slot.chunk == chunks - 1)


def _transfer_table(transfer: np.void, *, backward: bool) -> TaskTable:
    task = np.array([transfer], TASK)
    task["stream"] = Stream.SEND_PREVIOUS if backward else Stream.SEND_NEXT
    task["phase"] = Phase.BACKWARD if backward else Phase.FORWARD
    return TaskTable(tasks=task, edges=np.zeros((0, 2), np.int64), exit=0)


def _prefetch_edges(
    previous: tuple[TaskTable, int], current: tuple[TaskTable, int]
) -> NDArray[np.int64]:
    """Parameter gathers run at most two blocks ahead, across micro-batches too."""
    tails = [previous[1] + tail for tail in previous[0].tails]
    gathers = [current[1] + gather for gather in current[0].prefetch]
    if len(tails) == 1:
        tails = tails * 2
    pairs = zip(tails[-len(gathers) :], gathers, strict=False) if gathers else ()
    return np.array(list(pairs), dtype=np.int64).reshape(-1, 2)


def _host_task(context: ChunkContext, name: str, time_s: float, *, materials: bool) -> np.ndarray:
    task = np.zeros(1, TASK)
    task["kind"], task["stream"], task["axes"] = TaskKind.HOST, Stream.HOST, -1
    task["phase"] = Phase.MATERIALS if materials else Phase.OPTIMIZER
    task["stage"] = StageLabel.MATERIALS if materials else StageLabel.COMPUTING
    task["name"], task["work_s"], task["micro_batch"] = context.name(name), time_s, -1
    return task


def _input_table(context: ChunkContext, update: Update) -> TaskTable:
    task = _host_task(context, "input", update.input_s, materials=True)
    return TaskTable(tasks=task, edges=np.zeros((0, 2), np.int64), exit=0)


def _input_edges(order: Sequence[Slot], receives: dict[Slot, tuple[int, ...]]) -> NDArray[np.int64]:
    """The first forward waits for its input; later ones are prefetched."""
    first = order[0]
    waits = receives[first] or (1,)
    return np.array([(0, entry) for entry in waits], dtype=np.int64)


def _tail(blocks: Sequence[BlockParts], context: ChunkContext, update: Update) -> TaskTable:
    """Reductions that nothing hid, the optimiser, gathers that nothing hides, the overhead."""
    parts = []
    if not context.overlap_gradients:
        late = [g for block in blocks for g in block.storage.sync if not g.every_micro_batch]
        parts.append(reductions(late, context))
    step = np.zeros(1, TASK)
    step["kind"], step["stream"], step["axes"] = TaskKind.COMPUTE, Stream.COMPUTE, -1
    step["phase"], step["stage"] = Phase.OPTIMIZER, StageLabel.COMPUTING
    step["name"], step["micro_batch"] = context.name("optimizer"), -1
    step["work_s"], step["traffic_bytes"] = update.time_s, update.traffic_bytes
    parts.append(step)
    if not context.overlap_parameters:
        parts.append(updates([g for block in blocks for g in block.storage.sync], context))
    parts.append(_host_task(context, "step overhead", update.overhead_s, materials=False))
    tasks = np.concatenate(parts)
    chain = np.array([(i, i + 1) for i in range(len(tasks) - 1)], dtype=np.int64).reshape(-1, 2)
    return TaskTable(tasks=tasks, edges=chain)


def _tail_edges(tasks: NDArray[np.void], tail: int) -> NDArray[np.int64]:
    """The step's end waits for the last task on each stream before it."""
    streams = tasks["stream"][:tail]
    lasts = [int(np.flatnonzero(streams == s)[-1]) for s in np.unique(streams)]
    return np.array([(last, tail) for last in lasts], dtype=np.int64).reshape(-1, 2)


def _blocking_edges(tasks: NDArray[np.void], sends: dict[Slot, int]) -> NDArray[np.int64]:
    """Without overlap, the next compute task waits for the transfer before it."""
    computes = np.flatnonzero(tasks["stream"] == Stream.COMPUTE)
    pairs = []
    for send in sends.values():
        after = int(np.searchsorted(computes, send))
        if after < len(computes):
            pairs.append((send, int(computes[after])))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)
