"""Pass 8: one micro-batch through a pipeline chunk, forward and backward → tasks.

Here data-parallel traffic meets the layers: gathers of sharded parameters run ahead of compute,
gradients leave in buckets as backward produces them, and what waits outside of the device is
copied out behind a block and in ahead of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wattree.compiler.tasks.builder import TableBuilder
from wattree.compiler.tasks.chunk import (
    BlockParts,
    ChunkContext,
    copy_edges,
    copy_of_saved,
    dropped_gradients,
    from_first_rank,
    gathers,
    gradients_of,
    reductions,
    release,
    rows_of_tables,
    staging_lines,
    update_portions,
)
from wattree.compiler.tasks.ledger import Item, shifted, taken_for_later
from wattree.compiler.tasks.table import NO_TASKS, TaskTable, joined
from wattree.compiler.tasks.update import gradient_copies, gradients_taken, update_tasks
from wattree.lowering.storage import SyncGroup
from wattree.lowering.streams import Stream


def chunk_forward(
    blocks: Sequence[BlockParts],
    context: ChunkContext,
    *,
    first_micro_batch: bool,
    gathered: bool = False,
    is_one_of_several: bool = False,
) -> TaskTable:
    """Return the forward tasks of a chunk.

    Args:
        blocks: In model order.
        first_micro_batch: Updated parameters of sharded optimizers arrive now, if overlapped.
        gathered: Its parameters were gathered before and have been kept.
        is_one_of_several: Of the stage. All that was updated is gathered with the first micro-batch
            of the chunk before (`param_sync_func` of Megatron-Core's `schedules.py`).
    """
    moves = context.moves
    builder = TableBuilder(moves.lookahead)
    updated = [NO_TASKS] * len(blocks)
    if first_micro_batch and moves.overlap.parameters:
        updated = update_portions([block.storage for block in blocks], context)
    stored = moves.offload.prefetch + 1
    sent = from_first_rank([block.storage for block in blocks], context)
    last = max((n for n, each in enumerate(blocks) if _computes(each.tasks.forward)), default=-1)
    cached = [(n, *each) for n, block in enumerate(blocks) for each in block.tasks.cached]
    bucket = -1
    for place, (block, update) in enumerate(zip(blocks, updated, strict=True)):
        ahead = moves.overlap.forward_ahead
        if len(update):  # a bucket leaves while the blocks of the one before compute
            ahead, bucket = ahead + place - 1 - bucket + len(blocks) * is_one_of_several, place
        brought = [
            rows_of_tables(block.storage, context, out=False),
            NO_TASKS if gathered else gathers(block.storage, context),
            update,
        ]
        start = _add_block(
            builder,
            block,
            _ending(block.tasks.forward, cached) if place == last else block.tasks.forward,
            joined([sent, *brought] if place == 0 else brought),
            context,
            place=place,
            ahead=ahead,
            saved=not moves.overlap.reshard_after_forward,
        )
        if start >= 0 and len(builder.stored) >= stored:
            builder.link(builder.stored[-stored], start)  # no more than that is on its way out
        if block.stored_bytes > 0 and start >= 0:
            copy = _copy_saved(builder, block, place, context, out=True)
            builder.link(builder.tails[-1], copy)
            builder.stored.append(copy)
        if place == last:
            freed = [(builder.tails[-1], True, item, n, -1, -size) for n, item, size in cached]
            builder.note(freed)
    return replace(builder.table(), a_chunk_ahead=is_one_of_several and any(map(len, updated)))


def _computes(table: TaskTable) -> bool:
    return bool((table.tasks["stream"] == Stream.COMPUTE).any())


def _ending(table: TaskTable, cached: Sequence[tuple[int, int, float]]) -> TaskTable:
    """Return a table whose last computation frees what was cached until then."""
    if not cached:
        return table
    tasks = table.tasks.copy()
    at = np.flatnonzero(tasks["stream"] == Stream.COMPUTE)[-1]
    tasks["free_bytes"][at] += sum(size for _, _, size in cached)
    return replace(table, tasks=tasks)


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
        last_micro_batch: Accumulated gradients leave now, if overlapped.
        first_micro_batch: Gradients begin to be kept now, if they are not kept all the time.
        gathered: Its parameters have been kept since forward, and are dropped now.
    """
    builder = TableBuilder(context.moves.lookahead)
    leaving = _Leaving(builder, context, first=first_micro_batch, last=last_micro_batch)
    # Frozen blocks before the first trained one do nothing; and equal layers are one object, so
    # the last to run is identified by its position.
    working = [
        (place, block) for place, block in enumerate(blocks) if len(block.tasks.backward.tasks)
    ]
    for place, block in reversed(working):
        _fetch_and_add(
            builder, block, block.tasks.backward, context, place=place, gathered=gathered
        )
        if first_micro_batch or context.moves.sends_often(block.storage):
            _take_gradients(builder, block, place, context)
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
        gathered: Its parameters have been kept since forward, and are dropped now.
    """
    builder = TableBuilder(context.moves.lookahead)
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
    """Return the part of a chunk's backward that only the reductions wait for.

    Products of saved inputs and gradients: no parameter is read, so none is gathered.

    Args:
        blocks: In model order, compiled with their backward in two pieces.
        last_micro_batch: Accumulated gradients leave now, if overlapped.
        first_micro_batch: Gradients begin to be kept now, if they are not kept all the time.
    """
    builder = TableBuilder(context.moves.lookahead)
    leaving = _Leaving(builder, context, first=first_micro_batch, last=last_micro_batch)
    for place, block in reversed(list(enumerate(blocks))):
        table = block.tasks.weight_gradient
        assert table is not None
        if len(table.tasks):
            _add_block(builder, block, table, NO_TASKS, context, place=place)
        if first_micro_batch or context.moves.sends_often(block.storage):
            _take_gradients(builder, block, place, context)
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
    """Append a block's backward, with its gathers and its copies from other memory."""
    moves = context.moves
    copy = -1
    if block.stored_bytes > 0:
        copy = _copy_saved(builder, block, place, context, out=False)
        builder.wait(copy, moves.offload.prefetch + 1)
        builder.fetched.append(copy)
    gather = gathers(block.storage, context)
    start = _add_block(
        builder,
        block,
        table,
        NO_TASKS if gathered else gather,
        context,
        place=place,
        ahead=moves.overlap.backward_ahead,
        drops=tuple(gather["alloc_bytes"].tolist()) if gathered else (),
        behind=builder.reduced if moves.overlap.after_reductions else -1,
    )
    if start >= 0:
        builder.link(copy, start)
    if len(rows := rows_of_tables(block.storage, context, out=True)):
        builder.link(builder.tails[-1], builder.append(rows))


def _take_gradients(
    builder: TableBuilder, block: BlockParts, place: int, context: ChunkContext
) -> None:
    """Append what takes the gradients of a block that has run: losses are over before them."""
    if (size := context.moves.passing_gradients(block.storage)) > 0:
        taken = builder.append(gradients_taken(block.storage, context.moves, context.name))
        builder.wait(taken, 1)
        builder.note([(taken, False, gradients_of(block, context), place, 1, size)])


def _add_block(
    builder: TableBuilder,
    block: BlockParts,
    table: TaskTable,
    gather: np.ndarray,
    context: ChunkContext,
    *,
    place: int,
    ahead: int = 1,
    saved: bool = False,
    drops: Sequence[float] = (),
    behind: int = -1,
) -> int:
    """Append a block after its gathers; return its first task on the compute stream.

    Args:
        gather: What is brought first.
        place: Of the block in its chunk.
        ahead: The gather waits for the block that lies so many before.
        saved: What is gathered stays.
        drops: Gathered before and dropped when the block is done, each copy. [B]
        behind: A task that the gather waits for too, -1 for none.
    """
    before = builder.exit
    sizes = gather["alloc_bytes"].tolist()
    copies = context.items(Item("gathered", "gathered", block.name, "parameters"))
    first = _add_gather(builder, gather, ahead=ahead, behind=behind)
    builder.note([(first + i, False, copies, place, 1, size) for i, size in enumerate(sizes)])
    start = builder.append(table.tasks, table.edges)
    builder.ledger.append(shifted(table.ledger, start, block=place))
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
    if dropped := [*drops, *([] if saved else sizes)]:
        # The gathered copy lives until the block is done.
        dropping = builder.append(release(sum(dropped), context.name))
        builder.link(int(computes[-1]), dropping)
        builder.note([(dropping, True, copies, place, -1, -size) for size in dropped])
    builder.tails.append(int(computes[-1]))
    return int(computes[0])


def _add_gather(builder: TableBuilder, gather: np.ndarray, *, ahead: int, behind: int) -> int:
    """Append the gathers and copies of a block's parameters; return their first task.

    Gathers run alongside the blocks before; without prefetch they wait for the one before.
    """
    if not len(gather):
        return builder.count
    copies = np.flatnonzero(gather["stream"] == Stream.COPY_IN)
    edges = [(int(copy), int(copy) + 1) for copy in copies if copy + 1 < len(gather)]
    first = builder.append(gather, edges + copy_edges(gather, ahead=False))
    builder.link(behind, first)
    if len(builder.tails) >= ahead:
        builder.link(builder.tails[-ahead], first)
    else:
        builder.prefetch.append(first)
    return first


def _copy_saved(
    builder: TableBuilder, block: BlockParts, place: int, context: ChunkContext, *, out: bool
) -> int:
    """Append the copy of the tensors that a block saves for backward, out of or into the device."""
    copy = builder.append(copy_of_saved(block, context, out=out))
    sign = -1 if out else 1
    cached = dict(block.tasks.cached)
    saved = [
        (copy, out, item, place, sign, sign * size)
        for item, size in taken_for_later(block.tasks.forward.ledger)
        if item not in cached
    ]
    builder.note(saved)
    return copy


class _Leaving:
    """Gradients after a backward pass: reduced, copied out and used in buckets."""

    def __init__(
        self, builder: TableBuilder, context: ChunkContext, *, first: bool, last: bool
    ) -> None:
        self._builder, self._context, self._first, self._last = builder, context, first, last
        self._bucket: list[SyncGroup] = []
        self._blocks: list[BlockParts] = []
        self._waiting: tuple[list[BlockParts], int] | None = None  # reduced last, not updated yet

    def add(self, block: BlockParts) -> None:
        """Add the gradients of a block that has run."""
        now = self._last and self._context.moves.overlap.gradients
        now = now or self._context.moves.sends_often(block.storage)
        self._bucket += [g for g in block.storage.sync if g.every_micro_batch or now]
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
        now = self._last and moves.overlap.gradients
        if sent := [b for b in self._blocks if now or moves.sends_often(b.storage)]:
            if moves.offload.optimizer is not None:
                storages = [block.storage for block in sent]
                copies = gradient_copies(storages, moves, self._context.name, first=self._first)
                ready = builder.chain(copies, ready)
                builder.note(dropped_gradients(sent, ready, self._context))
            if now and moves.early_updates:
                # The update stands behind the next bucket's compute, which its reduction hides
                # behind: on a queue it would else hold up that compute until it is reduced.
                self.end()
                self._waiting = self._blocks, ready
        self._bucket, self._blocks = [], []

    def end(self) -> None:
        """Update the parameters whose gradients were reduced since the last update."""
        if self._waiting is None:
            return
        blocks, ready = self._waiting
        context, builder = self._context, self._builder
        storages = [block.storage for block in blocks]
        first = builder.count
        builder.chain(update_tasks(storages, context.moves, context.name), ready)
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
    first = builder.append(tasks, copy_edges(tasks, ahead=True))
    builder.note(staging_lines(tasks, first, context))
    builder.link(after, first)
    if after < 0:
        builder.entries.append(first)
    builder.reduced = first + len(tasks) - 1
    if not context.moves.overlap.gradients:
        builder.blocker = builder.reduced
    return builder.reduced
