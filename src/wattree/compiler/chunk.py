"""Pass 8: a pipeline chunk's forward and backward → tasks, with parameter and gradient traffic.

Here data-parallel traffic meets the layers: gathers of sharded parameters run ahead of compute,
gradients leave in buckets as backward produces them, and what waits outside of the device is
copied out behind a block and in ahead of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.block_tasks import BlockTasks
from wattree.compiler.builder import TableBuilder
from wattree.compiler.evaluate import collective_costs
from wattree.compiler.ledger import Item, Items, Line, at_block, shifted, taken_for_later
from wattree.compiler.movement import Movement
from wattree.compiler.program import CollectiveKind
from wattree.compiler.storage import Storage, SyncGroup
from wattree.compiler.tasks import GATHERED, GRADIENTS, TASK, Stream, TaskTable, joined
from wattree.compiler.update import gradients_out, gradients_taken, update_tasks
from wattree.cost import GroupShape
from wattree.cost.rates import Rates
from wattree.graph import Phase, StageLabel, TaskKind

__all__ = [
    "BlockParts",
    "ChunkContext",
    "chunk_backward",
    "chunk_forward",
    "chunk_input_gradient",
    "chunk_weight_gradient",
    "sync_tasks",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockParts:
    """What one block instance contributes.

    Attributes:
        tasks: Its forward and backward.
        storage: Its parameters and their traffic.
        name: Of the block.
        stored_bytes: What it keeps for backward in another memory; 0 for nothing. [B]
    """

    tasks: BlockTasks
    storage: Storage
    name: str
    stored_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkContext:
    """What turning traffic into tasks needs to know.

    Attributes:
        rates: What links reach.
        group: Axes → shape of their groups.
        name: String → number.
        axes: Axes → number.
        moves: How data moves in this job.
        items: Tensors that ledgers name by number.
    """

    rates: Rates
    group: Callable[[tuple[str, ...]], GroupShape]
    name: Callable[[str], int]
    axes: Callable[[tuple[str, ...]], int]
    moves: Movement
    items: Items


def sync_tasks(
    kind: CollectiveKind,
    axes: tuple[str, ...],
    size_bytes: float,
    context: ChunkContext,
    *,
    label: str,
    stream: int,
    overlaps: bool = True,
) -> np.ndarray:
    """Return the task of one collective between replicas; none if the group is one rank."""
    group = context.group(axes)
    if size_bytes <= 0 or float(group.ranks[0]) <= 1:
        return np.zeros(0, TASK)
    costs = collective_costs(kind, np.array([size_bytes]), group, context.rates)
    latency, work, wire, scale_up, adapter, uplink, in_turn = (float(v[0]) for v in costs)
    task = np.zeros(1, TASK)
    task["kind"] = TaskKind.COLLECTIVE
    task["stream"], task["axes"] = stream, context.axes(axes)
    task["overlaps"], task["in_turn"] = overlaps, in_turn > 0
    task["phase"], task["stage"] = Phase.SYNCHRONIZATION, StageLabel.COMMUNICATING
    task["name"] = context.name(label)
    task["latency_s"], task["work_s"], task["wire_bytes"] = latency, work, wire
    task["scale_up_bytes"], task["adapter_bytes"] = scale_up, adapter
    task["uplink_bytes"] = uplink
    return task


def chunk_forward(
    blocks: Sequence[BlockParts],
    context: ChunkContext,
    *,
    first_micro_batch: bool,
    gathered: bool = False,
) -> TaskTable:
    """Return the forward tasks of a chunk.

    Args:
        blocks: In model order.
        context: How traffic becomes tasks.
        first_micro_batch: Updated parameters of sharded optimisers arrive now, if overlapped.
        gathered: Its parameters were gathered before and have been kept.
    """
    moves = context.moves
    builder = TableBuilder(moves.reach)
    updated = [np.zeros(0, TASK)] * len(blocks)
    if first_micro_batch and moves.overlap_parameters:
        updated = update_portions([block.storage for block in blocks], context)
    stored = moves.offload.prefetch + 1
    for place, (block, update) in enumerate(zip(blocks, updated, strict=True)):
        gather = np.zeros(0, TASK) if gathered else _gathers(block.storage, context)
        start = _add_block(
            builder,
            block,
            block.tasks.forward,
            joined([gather, update]),
            context,
            place=place,
            ahead=moves.forward_ahead,
            kept=not moves.reshard_after_forward,
        )
        if start >= 0 and len(builder.stored) >= stored:
            builder.link(builder.stored[-stored], start)  # no more than that is on its way out
        if block.stored_bytes > 0 and start >= 0:
            copy = _copy_kept(builder, block, place, context, out=True)
            builder.link(builder.tails[-1], copy)
            builder.stored.append(copy)
    return builder.table()


def chunk_backward(
    blocks: Sequence[BlockParts],
    context: ChunkContext,
    *,
    last_micro_batch: bool,
    first_micro_batch: bool = False,
    gathered: bool = False,
) -> TaskTable:
    """Return the backward tasks of a chunk.

    Args:
        blocks: In model order.
        context: How traffic becomes tasks.
        last_micro_batch: Accumulated gradients leave now, if overlapped.
        first_micro_batch: Gradients begin to be kept now, if they are not kept all the time.
        gathered: Its parameters have been kept since forward, and are dropped now.
    """
    builder = TableBuilder(context.moves.reach)
    leaving = _Leaving(builder, context, last=last_micro_batch)
    # Frozen blocks before the first trained one do nothing; and equal layers are one object, so
    # the last to run is told by its place.
    working = [
        (place, block) for place, block in enumerate(blocks) if len(block.tasks.backward.tasks)
    ]
    for place, block in reversed(working):
        if first_micro_batch:
            _take_gradients(builder, block, place, context)
        _fetch_and_add(
            builder, block, block.tasks.backward, context, place=place, gathered=gathered
        )
        leaving.add(block)
        if place == working[0][0] or leaving.is_full:
            leaving.flush()
    leaving.end()
    return builder.table()


def chunk_input_gradient(
    blocks: Sequence[BlockParts], context: ChunkContext, *, gathered: bool = False
) -> TaskTable:
    """Return the part of a chunk's backward that the stage before waits for.

    Args:
        blocks: In model order, compiled with their backward in two pieces.
        context: How traffic becomes tasks.
        gathered: Its parameters have been kept since forward, and are dropped now.
    """
    builder = TableBuilder(context.moves.reach)
    for place, block in reversed(list(enumerate(blocks))):
        table = block.tasks.input_gradient
        assert table is not None
        if len(table.tasks):
            _fetch_and_add(builder, block, table, context, place=place, gathered=gathered)
    return builder.table()


def chunk_weight_gradient(
    blocks: Sequence[BlockParts],
    context: ChunkContext,
    *,
    last_micro_batch: bool,
    first_micro_batch: bool = False,
) -> TaskTable:
    """Return the part of a chunk's backward that nobody waits for but the reductions.

    Products of saved inputs and gradients: no parameter is read, so none is gathered.

    Args:
        blocks: In model order, compiled with their backward in two pieces.
        context: How traffic becomes tasks.
        last_micro_batch: Accumulated gradients leave now, if overlapped.
        first_micro_batch: Gradients begin to be kept now, if they are not kept all the time.
    """
    builder = TableBuilder(context.moves.reach)
    leaving = _Leaving(builder, context, last=last_micro_batch)
    for place, block in reversed(list(enumerate(blocks))):
        table = block.tasks.weight_gradient
        assert table is not None
        if first_micro_batch:
            _take_gradients(builder, block, place, context)
        if len(table.tasks):
            _add_block(builder, block, table, np.zeros(0, TASK), context, place=place)
        leaving.add(block)
        if leaving.is_full:
            leaving.flush()
    leaving.flush()
    leaving.end()
    return builder.table()


def _fetch_and_add(
    builder: TableBuilder,
    block: BlockParts,
    table: TaskTable,
    context: ChunkContext,
    *,
    place: int,
    gathered: bool,
) -> None:
    """Append a block's backward, with what it gathers and what it stored elsewhere."""
    moves = context.moves
    copy = -1
    if block.stored_bytes > 0:
        copy = _copy_kept(builder, block, place, context, out=False)
        builder.wait(copy, moves.offload.prefetch + 1)
        builder.fetched.append(copy)
    gather = _gathers(block.storage, context)
    start = _add_block(
        builder,
        block,
        table,
        np.zeros(0, TASK) if gathered else gather,
        context,
        place=place,
        ahead=moves.backward_ahead,
        drops=tuple(gather["alloc_bytes"].tolist()) if gathered else (),
        behind=builder.reduced if moves.after_reductions else -1,
    )
    if start >= 0:
        builder.link(copy, start)


def _take_gradients(
    builder: TableBuilder, block: BlockParts, place: int, context: ChunkContext
) -> None:
    if block.storage.gradients[0] > 0:
        taken = builder.append(gradients_taken(block.storage, context.name))
        builder.wait(taken, 1)
        size = float(block.storage.gradients[0])
        builder.note([(taken, False, gradients_of(block, context), place, 1, size)])


def gradients_of(block: BlockParts, context: ChunkContext) -> int:
    """Return the number of the item that a block's gradients are."""
    return context.items(Item("gradients", "stored", block.name, "gradients"))


def _add_block(
    builder: TableBuilder,
    block: BlockParts,
    table: TaskTable,
    gather: np.ndarray,
    context: ChunkContext,
    *,
    place: int,
    ahead: int = 1,
    kept: bool = False,
    drops: Sequence[float] = (),
    behind: int = -1,
) -> int:
    """Append a block after what it gathers; return its first task on the compute stream.

    Args:
        builder: Of the table.
        block: What to append.
        table: The block's tasks.
        gather: What is brought first.
        context: How traffic becomes tasks.
        place: Of the block in its chunk.
        ahead: The gather waits for the block that lies so many before.
        kept: What is gathered stays.
        drops: Gathered before and dropped when the block is done, each copy. [B]
        behind: A task that the gather waits for too, -1 for none.
    """
    before = builder.exit
    sizes = gather["alloc_bytes"].tolist()
    copies = context.items(Item("gathered", "gathered", block.name, "parameters"))
    first = _add_gather(builder, gather, ahead=ahead, behind=behind)
    builder.note([(first + i, False, copies, place, 1, size) for i, size in enumerate(sizes)])
    start = builder.append(table.tasks, table.edges)
    builder.ledger.append(at_block(shifted(table.ledger, start), place))
    for entry in table.entries:
        if before >= 0:
            builder.link(before, start + entry)
        else:
            builder.entries.append(start + entry)
    if table.exit >= 0:
        builder.exit = start + table.exit
    computes = start + np.flatnonzero(table.tasks["stream"] == Stream.COMPUTE)
    if not len(computes):
        return -1
    builder.link(builder.blocker, int(computes[0]))
    builder.blocker = -1
    if len(gather):
        builder.link(first + len(gather) - 1, int(computes[0]))
    if dropped := [*drops, *([] if kept else sizes)]:
        # The gathered copy lives until the block is done.
        release = builder.append(_release(sum(dropped), context.name))
        builder.link(int(computes[-1]), release)
        builder.note([(release, True, copies, place, -1, -size) for size in dropped])
    builder.tails.append(int(computes[-1]))
    return int(computes[0])


def _add_gather(builder: TableBuilder, gather: np.ndarray, *, ahead: int, behind: int) -> int:
    """Append what brings a block's parameters; return its first task.

    Gathers run beside the blocks before; without prefetch they wait for the one before.
    """
    if not len(gather):
        return builder.count
    copies = np.flatnonzero(gather["stream"] == Stream.COPY_IN)
    edges = [(int(copy), int(copy) + 1) for copy in copies if copy + 1 < len(gather)]
    first = builder.append(gather, edges)
    builder.link(behind, first)
    if len(builder.tails) >= ahead:
        builder.link(builder.tails[-ahead], first)
    else:
        builder.prefetch.append(first)
    return first


def _copy_kept(
    builder: TableBuilder, block: BlockParts, place: int, context: ChunkContext, *, out: bool
) -> int:
    """Append the copy of what a block keeps for backward; the device's copy goes, or comes."""
    moves = context.moves
    assert moves.offload.activations is not None
    task = moves.tiers[moves.offload.activations].copy(
        block.stored_bytes,
        out=out,
        name=context.name("activations.copy out" if out else "activations.copy in"),
        phase=Phase.FORWARD if out else Phase.BACKWARD,
        category=0,
    )
    task["free_bytes" if out else "alloc_bytes"] = block.stored_bytes
    copy = builder.append(task)
    sign = -1 if out else 1
    kept = taken_for_later(block.tasks.forward.ledger)
    builder.note([(copy, out, item, place, sign, sign * size) for item, size in kept])
    return copy


def _release(size_bytes: float, name: Callable[[str], int]) -> np.ndarray:
    """Return the moment at which a gathered copy is dropped: a task of no time on the host."""
    task = np.zeros(1, TASK)
    task["kind"], task["stream"], task["axes"] = TaskKind.HOST, Stream.HOST, -1
    task["phase"], task["stage"] = Phase.SYNCHRONIZATION, StageLabel.COMPUTING
    task["category"], task["free_bytes"] = GATHERED, size_bytes
    task["name"] = name("parameters.release")
    return task


def _gathers(storage: Storage, context: ChunkContext) -> np.ndarray:
    """What brings parameters to the device for use: a copy in, all-gathers of shards.

    One gather for groups over the same axes.
    """
    moves = context.moves
    sizes: dict[tuple[str, ...], float] = {}
    for group in storage.sync:
        if group.gather_axes:
            sizes[group.gather_axes] = sizes.get(group.gather_axes, 0.0) + group.gather_bytes[0]
    tasks = [np.zeros(0, TASK)]
    if moves.offload.parameters is not None and storage.parameters[0] > 0:
        size = float(storage.parameters[0])
        copy = moves.tiers[moves.offload.parameters].copy(
            size,
            out=False,
            name=context.name("parameters.copy in"),
            phase=Phase.SYNCHRONIZATION,
            category=GATHERED,
        )
        copy["alloc_bytes"] = size
        tasks.append(copy)
    for axes, size in sizes.items():
        task = sync_tasks(
            CollectiveKind.ALL_GATHER,
            axes,
            size,
            context,
            label="parameters.gather",
            stream=moves.stream("parameters", Stream.GATHER),
            overlaps=True,
        )
        task["alloc_bytes"], task["category"] = size, GATHERED
        tasks.append(task)
    return joined(tasks)


def update_portions(storages: Sequence[Storage], context: ChunkContext) -> list[NDArray[np.void]]:
    """Return all-gathers of what sharded optimisers updated, as many lists as blocks.

    A bucket of several blocks is gathered before the first of them.
    """
    bucket_bytes = context.moves.parameter_bucket_bytes
    if bucket_bytes <= 0:
        return [_updates(storage.sync, context) for storage in storages]
    portions = [np.zeros(0, TASK)] * len(storages)
    sizes: dict[tuple[str, ...], float] = {}
    first = 0
    for index, storage in enumerate(storages):
        for group in storage.sync:
            if group.update_axes:
                size = sizes.get(group.update_axes, 0.0) + float(group.gather_bytes[0])
                sizes[group.update_axes] = size
        if sum(sizes.values()) >= bucket_bytes or index + 1 == len(storages):
            portions[first] = joined([_update(axes, size, context) for axes, size in sizes.items()])
            sizes, first = {}, index + 1
    return portions


def _updates(sync: Sequence[SyncGroup], context: ChunkContext) -> NDArray[np.void]:
    return joined(
        [
            _update(group.update_axes, float(group.gather_bytes[0]), context)
            for group in sync
            if group.update_axes
        ]
    )


def _update(axes: tuple[str, ...], size_bytes: float, context: ChunkContext) -> NDArray[np.void]:
    return sync_tasks(
        CollectiveKind.ALL_GATHER,
        axes,
        size_bytes,
        context,
        label="parameters.update",
        stream=context.moves.stream("parameters", Stream.GATHER),
    )


class _Leaving:
    """Gradients on their way out of a backward pass: reduced, copied out, used, in buckets."""

    def __init__(self, builder: TableBuilder, context: ChunkContext, *, last: bool) -> None:
        self._builder, self._context, self._last = builder, context, last
        self._bucket: list[SyncGroup] = []
        self._blocks: list[BlockParts] = []
        self._waiting: tuple[list[BlockParts], int] | None = None  # reduced last, not updated yet

    def add(self, block: BlockParts) -> None:
        """Add the gradients of a block that has run."""
        overlaps = self._last and self._context.moves.overlap_gradients
        self._bucket += [g for g in block.storage.sync if g.every_micro_batch or overlaps]
        self._blocks.append(block)

    @property
    def is_full(self) -> bool:
        """Whether the bucket is to be sent."""
        size = float(sum(group.reduce_bytes[0] for group in self._bucket))
        return size >= self._context.moves.bucket_bytes

    def flush(self) -> None:
        """Send the bucket."""
        builder, moves = self._builder, self._context.moves
        after = builder.tails[-1] if builder.tails else -1
        ready = _add_reductions(builder, self._bucket, self._context, after)
        if self._last and moves.overlap_gradients and self._blocks:
            if moves.offload.optimizer is not None:
                storages = [block.storage for block in self._blocks]
                ready = builder.chain([gradients_out(storages, moves, self._context.name)], ready)
                builder.note(dropped_gradients(self._blocks, ready, self._context))
            if moves.early_updates:
                # The update stands behind the next bucket's compute, which its reduction hides
                # behind: on a queue it would else hold up that compute until it is reduced.
                self.end()
                self._waiting = self._blocks, ready
        self._bucket, self._blocks = [], []

    def end(self) -> None:
        """Update what was reduced and has not been updated."""
        if self._waiting is None:
            return
        blocks, ready = self._waiting
        context, builder = self._context, self._builder
        storages = [block.storage for block in blocks]
        first = builder.count
        builder.chain(update_tasks(storages, context.moves, context.name, frees=True), ready)
        if context.moves.offload.optimizer is None:
            builder.note(dropped_gradients(blocks, first, context))
        self._waiting = None


def _add_reductions(
    builder: TableBuilder, bucket: Sequence[SyncGroup], context: ChunkContext, after: int
) -> int:
    """Append the reductions of a bucket; return the last, or `after` if there is none."""
    tasks = reductions(bucket, context)
    if not len(tasks):
        return after
    first = builder.append(tasks)
    builder.note(staging_lines(tasks, first, context))
    builder.link(after, first)
    if after < 0:
        builder.entries.append(first)
    builder.reduced = first + len(tasks) - 1
    if not context.moves.overlap_gradients:
        builder.blocker = builder.reduced
    return builder.reduced


def staging_lines(tasks: np.ndarray, first: int, context: ChunkContext) -> list[Line]:
    """Return the ledger of what reductions stage, the first of which is task `first`."""
    item = context.items(Item("gradients", "buffer", "", "bucket under reduction"))
    lines: list[Line] = []
    for task, size in enumerate(tasks["alloc_bytes"].tolist(), start=first):
        lines += [(task, False, item, 0, 1, size), (task, True, item, 0, -1, -size)]
    return lines


def dropped_gradients(blocks: Sequence[BlockParts], task: int, context: ChunkContext) -> list[Line]:
    """Return the ledger of a task at whose end the gradients of blocks go."""
    return [
        (task, True, gradients_of(block, context), 0, -1, -float(block.storage.gradients[0]))
        for block in blocks
    ]


def reductions(bucket: Sequence[SyncGroup], context: ChunkContext) -> np.ndarray:
    """Return the reductions of a bucket of gradients, groups over the same axes together.

    Gradients that are stored as shards exist as a whole only here: in the buffer from which they
    are scattered. Those that are stored whole are reduced where they lie.
    """
    sizes: dict[tuple[tuple[str, ...], tuple[str, ...]], float] = {}
    staged: dict[tuple[str, ...], float] = {}
    for group in bucket:
        key = group.scatter_axes, group.reduce_axes
        sizes[key] = sizes.get(key, 0.0) + float(group.reduce_bytes[0])
        if group.is_staged:
            staged[group.scatter_axes] = staged.get(group.scatter_axes, 0.0) + float(
                group.reduce_bytes[0]
            )
    tasks = [np.zeros(0, TASK)]
    for (scatter, rest), size in sizes.items():
        if scatter:
            task = _reduction(CollectiveKind.REDUCE_SCATTER, scatter, size, context)
            task["alloc_bytes"] = task["free_bytes"] = staged.pop(scatter, 0.0)
            task["category"] = GRADIENTS
            tasks.append(task)
        if rest:
            shard = size / float(context.group(scatter).ranks[0])
            tasks.append(_reduction(CollectiveKind.ALL_REDUCE, rest, shard, context))
    return joined(tasks)


def _reduction(
    kind: CollectiveKind, axes: tuple[str, ...], size: float, context: ChunkContext
) -> np.ndarray:
    stream = context.moves.stream("gradients", Stream.REDUCE)
    return sync_tasks(kind, axes, size, context, label="gradients.reduce", stream=stream)
