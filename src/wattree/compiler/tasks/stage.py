"""Pass 9: one pipeline stage's whole step: its schedule, transfers, reductions and update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
from wattree.compiler.tasks.chunk_tables import ChunkTables
from wattree.compiler.tasks.ledger import Piece, entries
from wattree.compiler.tasks.pairs import PairedTables
from wattree.compiler.tasks.slots import (
    PlacedSlot,
    SlotTransfers,
    TableSequence,
    arriving,
    place_slots,
    receives_of,
    return_edges,
    sends_of,
    slot_edges,
)
from wattree.compiler.tasks.stage_program import MIRROR, Send, StageProgram, StageTransfer
from wattree.compiler.tasks.table import NO_TASKS, TASK, TaskTable, joined
from wattree.compiler.tasks.update import gradient_copies, table_updates, update_tasks
from wattree.cost.loading import copy_bytes_per_s, storage_bytes_per_s
from wattree.graph import OperatorClass, Phase, StageLabel, TaskKind
from wattree.lowering.loading import Loading
from wattree.lowering.streams import CATEGORIES, Copy, Stream
from wattree.strategy.schedules import Order, Place, Slot, SlotWork

_INPUT = CATEGORIES.index("input")
Names = Callable[[str], int]


Pairs = list[tuple[int, int]]


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


def stage_program(
    order: Order,
    chunks: Sequence[ChunkTables],
    blocks: Sequence[Sequence[BlockParts]],
    context: ChunkContext,
    update: Update,
    *,
    transfers: SlotTransfers,
    blocking_transfers: bool,
    pairs: PairedTables,
) -> StageProgram:
    """Return the program of one rank of a stage for a step.

    Args:
        order: What it works on, in order.
        blocks: The blocks of each chunk, for the traffic at the step's end.
        transfers: What it sends to other stages, and how.
        blocking_transfers: Compute waits for each transfer (no overlap).
        pairs: Tables of slots that run side by side.
    """
    stage, placement = transfers.stage, transfers.placement
    begins = [Place(stage, c) not in placement.before for c in range(len(chunks))]
    firsts = [slot for slot in order if slot.work is SlotWork.FORWARD and begins[slot.chunk]]
    tables = TableSequence()
    inputs = _input_tables(tables, context, update, len(firsts))
    keeps = not context.moves.overlap.reshard_after_forward
    placed = place_slots(order, chunks, tables, transfers, pairs, keeps_gathered=keeps)
    receives = receives_of(placed, stage=stage, placement=placement)
    sends = sends_of(placed, transfers)
    extra = [*slot_edges(placed, transfers, receives), *return_edges(placed)]
    extra += _input_edges(firsts, placed, receives, inputs)
    receives, gathered = arriving(placed, receives)
    extra += gathered
    ends = []
    if placement.copies > 1:
        ends.append(tables.append(_mirror_table(transfers.transfer, context, update)))
        receives[MIRROR] = (tables.count,)
        sends.append(Send(ends[0], placement.stages - 1 - stage, 0, MIRROR))
    last = _tail([block for held in blocks for block in held], context, update)
    ends.append(tables.append(last))
    records, repeated = tables.records(), tables.repeated(placed)
    lasting = np.where(records["phase"] == Phase.PREFETCH, np.int8(-1), records["stream"])
    extra += [edge for end in ends for edge in _tail_edges(lasting[repeated.rows[:end]])]
    if blocking_transfers:
        extra += _blocking_edges(records["stream"][repeated.rows], sends)
    return StageProgram(
        records=records,
        rows=repeated.rows,
        micro_batches=repeated.micro_batches,
        edges=np.concatenate([repeated.edges, np.array(extra, dtype=np.int32).reshape(-1, 2)]),
        sends=tuple(sends),
        receives=receives,
        pieces=(*(item.piece for item in placed), Piece(ends[-1], None, 0, 0, last.ledger)),
    )


def _input_tables(
    tables: TableSequence, context: ChunkContext, update: Update, count: int
) -> range:
    """Append the input of so many micro-batches; return the tasks that they wait for."""
    if not count:
        return range(0)
    if update.loading is None:
        task = _host_task(context, "input", update.input_s, materials=True)
        tables.append(TaskTable(tasks=task, edges=_NO_EDGES))
        return range(1)
    tables.append(
        TaskTable(tasks=input_ahead(update.loading, count, context.name), edges=_NO_EDGES)
    )
    copies, steps = input_copies(update.loading, count, context.name)
    first = tables.append(copies)
    return range(first + steps - 1, first + len(copies.tasks), steps)


_NO_EDGES = np.zeros((0, 2), np.int64)


def _input_edges(
    firsts: Sequence[Slot],
    placed: Sequence[PlacedSlot],
    receives: Mapping[StageTransfer, tuple[int, ...]],
    inputs: range,
) -> Pairs:
    """Let forwards that begin the model wait for their input, and its copy for earlier work.

    Each copy that is waited for begins when the computation before it has ended; where nothing
    more is known of how data is loaded, the first forward alone waits.
    """
    waiting = dict(zip(firsts, inputs, strict=False))
    if not waiting:
        return []
    at = {item.slot: item.first for item in placed}
    pairs: Pairs = []
    for slot, task in waiting.items():
        waits = receives[StageTransfer(slot.chunk, slot.micro_batch, False)] or (at[slot],)
        pairs += [(task, entry) for entry in waits]
    tail = -1
    for item in placed if len(inputs) == len(firsts) else ():
        if item.slot in waiting and tail >= 0:
            pairs.append((tail, waiting[item.slot] - inputs.step + 1))
        if item.table.tails:
            tail = item.row(item.table.tails[-1])
    return pairs


def _mirror_table(transfer: np.void, context: ChunkContext, update: Update) -> TaskTable:
    """Return the exchange of gradients with the stage that has the same chunks.

    Each side sends what its replicas have reduced and adds what it gets: the bytes of an
    all-reduce between two. Of gradients that are sharded over replicas, each rank sends its shard.
    """
    task = np.array([transfer], TASK)
    task["stream"], task["phase"] = Stream.REDUCE, Phase.SYNCHRONIZATION
    task["name"], task["micro_batch"] = context.name("gradients.mirror"), -1
    task["wire_bytes"] = update.gradient_bytes
    task["operator_class"] = OperatorClass.GRADIENT_SYNC
    return TaskTable(tasks=task, edges=np.zeros((0, 2), np.int64), exit=0)


def _host_task(context: ChunkContext, name: str, time_s: float, *, materials: bool) -> np.ndarray:
    task = np.zeros(1, TASK)
    task["kind"], task["stream"], task["axes"] = TaskKind.HOST, Stream.HOST, -1
    task["phase"] = Phase.MATERIALS if materials else Phase.OPTIMIZER
    task["stage"] = StageLabel.MATERIALS if materials else StageLabel.COMPUTING
    task["name"], task["work_s"], task["micro_batch"] = context.name(name), time_s, -1
    task["operator_class"] = OperatorClass.READING if materials else OperatorClass.HOST
    return task


def _tail(blocks: Sequence[BlockParts], context: ChunkContext, update: Update) -> TaskTable:
    """Append exposed reductions, the optimizer, exposed gathers, and the overhead."""
    moves, storages = context.moves, [block.storage for block in blocks]
    parts, lines = [], []
    if not moves.overlap.gradients:
        late = [g for storage in storages for g in storage.sync if not g.every_micro_batch]
        parts.append(reductions(late, context))
        lines += staging_lines(parts[0], 0, context)
        kept = [block for block in blocks if not moves.sends_often(block.storage)]
        if moves.offload.optimizer is not None and kept:
            whole = [block.storage for block in kept]
            parts += gradient_copies(whole, moves, context.name, first=True)
            lines += dropped_gradients(kept, len(parts[0]), context)
    if not moves.early_updates:
        if moves.offload.optimizer is None:
            lines += dropped_gradients(blocks, sum(map(len, parts)), context)
        parts += update_tasks(storages, moves, context.name)
    parts += table_updates(storages, moves, context.name)
    if not moves.overlap.parameters:
        parts += update_portions(storages, context)
    parts.append(_host_task(context, "step overhead", update.overhead_s, materials=False))
    tasks = joined(parts)
    chain = np.array([(i, i + 1) for i in range(len(tasks) - 1)], dtype=np.int64).reshape(-1, 2)
    return TaskTable(tasks=tasks, edges=chain, ledger=entries(lines))


def _tail_edges(before: NDArray[np.int8]) -> Pairs:
    """Let the step's end wait for the last task on each stream before it.

    Not for what later steps need, which may go on until the end of all tasks: the next step begins
    when all of them are done: those have -1 for their stream.
    """
    last = np.full(int(before.max(initial=-1)) + 2, -1)  # by stream; one more for those without
    last[before] = np.arange(len(before))  # of equal places, the last value stays
    return [(task, len(before)) for task in last[:-1].tolist() if task >= 0]


def _blocking_edges(streams: NDArray[np.int8], sends: Sequence[Send]) -> Pairs:
    """Without overlap, let the next compute task wait for the transfer before it."""
    computes = np.flatnonzero(streams == Stream.COMPUTE)
    after = np.searchsorted(computes, [send.task for send in sends]).tolist()
    return [
        (send.task, int(computes[at]))
        for send, at in zip(sends, after, strict=True)
        if at < len(computes)
    ]


def input_ahead(loading: Loading, count: int, name: Names) -> NDArray[np.void]:
    """Return the input tasks concurrent with a step's work, for so many micro-batches.

    One step of many is compiled, in which nothing begins cold. Storage, workers and copies each do
    their share of a step on batches that are needed later, so nothing in it waits for them; but it
    is over when all of them are: in steady state it takes as long as the slowest.
    """
    parts = loading.times_s()
    rows = [_read(loading, parts["storage"], name)]
    if loading.loader.workers:
        rows.append(_workers(parts, name))
    if loading.loader.copies_ahead:
        rows.append(_copy(loading, parts["copies"], name, Phase.PREFETCH))
    if "decoder" in parts:
        rows.append(_host(name("input.decode on device"), Stream.DECODER, parts["decoder"]))
    rows = [row for row in rows if row["work_s"][0] > 0]
    if not rows:
        return NO_TASKS
    tasks = np.tile(np.concatenate(rows), count)
    tasks["micro_batch"] = np.repeat(np.arange(count), len(rows))
    return tasks


def input_copies(loading: Loading, count: int, name: Names) -> tuple[TaskTable, int]:
    """Return the loading that computation waits for, and how many tasks each micro-batch has.

    Without workers, the process loads a micro-batch before it copies it.
    """
    parts, rows = loading.times_s(), []
    if not loading.loader.workers:
        rows.append(_workers(parts, name))
        rows[0]["phase"] = Phase.MATERIALS
    if not loading.loader.copies_ahead:
        rows.append(_copy(loading, parts["copies"], name, Phase.MATERIALS))
    rows = [row for row in rows if row["work_s"][0] > 0]
    if not rows:
        return TaskTable(tasks=NO_TASKS, edges=_NO_EDGES), 1
    loads = np.arange(count if len(rows) > 1 else 0, dtype=np.int32) * 2
    tasks = np.tile(np.concatenate(rows), count)
    return TaskTable(tasks=tasks, edges=np.stack([loads, loads + 1], axis=1)), len(rows)


def _read(loading: Loading, shared_s: float, name: Names) -> NDArray[np.void]:
    size = loading.device_samples * loading.loader.sample_bytes
    alone_s = size / storage_bytes_per_s(loading.loader, loading.node)
    task = _moving(name("input.read"), Stream.STORAGE, size / loading.ranks, Phase.PREFETCH)
    task["copy"] = Copy.FROM_STORAGE if loading.simulates_links else Copy.NONE
    task["work_s"] = alone_s if loading.simulates_links else shared_s
    return task


def _workers(parts: Mapping[str, float], name: Names) -> NDArray[np.void]:
    # Workers wait for reads and for cores; with more of them than cores, these decide.
    busy_s = max(parts["workers"], parts["cores"])
    return _host(name("input.decode"), Stream.WORKERS, busy_s)


def _copy(loading: Loading, shared_s: float, name: Names, phase: Phase) -> NDArray[np.void]:
    size = loading.device_samples * loading.loader.copied_bytes
    task = _moving(name("input.copy"), Stream.INPUT_COPY, size / loading.ranks, phase)
    task["copy"] = Copy.FROM_HOST if loading.simulates_links else Copy.NONE
    alone_s = size / copy_bytes_per_s(loading.loader, loading.node)
    task["work_s"] = alone_s if loading.simulates_links else shared_s
    task["traffic_bytes"] = size
    return task


def _host(name: int, stream: int, work_s: float) -> NDArray[np.void]:
    task = np.zeros(1, TASK)
    task["kind"], task["stream"], task["axes"] = TaskKind.HOST, stream, -1
    task["phase"], task["stage"] = Phase.PREFETCH, StageLabel.MATERIALS
    task["name"], task["work_s"] = name, work_s
    task["operator_class"] = OperatorClass.PREPARING
    return task


def _moving(name: int, stream: int, size_bytes: float, phase: Phase) -> NDArray[np.void]:
    task = np.zeros(1, TASK)
    task["kind"], task["stream"], task["axes"] = TaskKind.TRANSFER, stream, -1
    task["phase"], task["stage"] = phase, StageLabel.MATERIALS
    task["category"], task["name"], task["wire_bytes"] = _INPUT, name, size_bytes
    is_read = stream == Stream.STORAGE
    task["operator_class"] = OperatorClass.READING if is_read else OperatorClass.COPYING
    return task
