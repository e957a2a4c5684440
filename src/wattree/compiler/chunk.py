"""Pass 8: a pipeline chunk's forward and backward → tasks, with parameter and gradient traffic.

Here data-parallel traffic meets the layers: gathers of sharded parameters run ahead of compute
by two blocks, gradients leave in buckets as backward produces them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.compiler.block_tasks import BlockTasks
from wattree.compiler.evaluate import collective_costs
from wattree.compiler.ledger import Item, Items, at_block, entries, shifted
from wattree.compiler.program import CollectiveKind
from wattree.compiler.storage import Storage, SyncGroup
from wattree.compiler.tasks import GATHERED, GRADIENTS, TASK, Stream, TaskTable, joined
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
    """

    tasks: BlockTasks
    storage: Storage
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkContext:
    """What turning traffic into tasks needs to know.

    Attributes:
        rates: What links reach.
        group: Axes → shape of their groups.
        name: String → number.
        axes: Axes → number.
        bucket_bytes: Gradients reduced together.
        overlap_gradients, overlap_parameters: Hide the traffic behind compute.
        items: Tensors that ledgers name by number.
    """

    rates: Rates
    group: Callable[[tuple[str, ...]], GroupShape]
    name: Callable[[str], int]
    axes: Callable[[tuple[str, ...]], int]
    bucket_bytes: float
    overlap_gradients: bool
    overlap_parameters: bool
    items: Items


#: A gather may start when all but this many blocks before are done.
_PREFETCHED_BLOCKS = 2


class _Builder:
    """Blocks and traffic appended one after another, with running indices."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.edges: list[np.ndarray] = []
        self.ledger: list[np.ndarray] = [entries(())]
        self.count = 0
        self.exit = -1
        self.entries: list[int] = []
        self.prefetch: list[int] = []
        self.tails: list[int] = []
        self.blocker = -1  # a reduction that the next block's compute must await

    def append(self, tasks: np.ndarray, edges: Sequence[tuple[int, int]] | np.ndarray = ()) -> int:
        first = self.count
        self.parts.append(tasks)
        if len(edges):
            self.edges.append(np.asarray(edges, dtype=np.int64) + first)
        self.count += len(tasks)
        return first

    def link(self, before: int, after: int) -> None:
        if before >= 0:
            self.edges.append(np.array([[before, after]], dtype=np.int64))

    def table(self) -> TaskTable:
        tasks = joined(self.parts)
        edges = np.concatenate(self.edges) if self.edges else np.zeros((0, 2), np.int64)
        return TaskTable(
            tasks=tasks,
            edges=edges,
            entries=tuple(self.entries),
            exit=self.exit,
            prefetch=tuple(self.prefetch),
            tails=tuple(self.tails[-2:]),
            ledger=np.concatenate(self.ledger),
        )


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
    latency, work, wire, scale_up, adapter, uplink = (float(value[0]) for value in costs)
    task = np.zeros(1, TASK)
    task["kind"] = TaskKind.COLLECTIVE
    task["stream"], task["axes"] = stream, context.axes(axes)
    task["overlaps"] = overlaps
    task["phase"], task["stage"] = Phase.SYNCHRONIZATION, StageLabel.COMMUNICATING
    task["name"] = context.name(label)
    task["latency_s"], task["work_s"], task["wire_bytes"] = latency, work, wire
    task["scale_up_bytes"], task["adapter_bytes"] = scale_up, adapter
    task["uplink_bytes"] = uplink
    return task


def chunk_forward(
    blocks: Sequence[BlockParts], context: ChunkContext, *, first_micro_batch: bool
) -> TaskTable:
    """Return the forward tasks of a chunk.

    Args:
        blocks: In model order.
        context: How traffic becomes tasks.
        first_micro_batch: Updated parameters of sharded optimisers arrive now, if overlapped.
    """
    builder = _Builder()
    for place, block in enumerate(blocks):
        gather = _gathers(block.storage.sync, context)
        if first_micro_batch and context.overlap_parameters:
            gather = joined([gather, updates(block.storage.sync, context)])
        _add_block(builder, block, block.tasks.forward, gather, context, place=place)
    return builder.table()


def chunk_backward(
    blocks: Sequence[BlockParts], context: ChunkContext, *, last_micro_batch: bool
) -> TaskTable:
    """Return the backward tasks of a chunk.

    Args:
        blocks: In model order.
        context: How traffic becomes tasks.
        last_micro_batch: Accumulated gradients leave now, if overlapped.
    """
    builder = _Builder()
    bucket: list[SyncGroup] = []
    # Frozen blocks before the first trained one do nothing; and equal layers are one object, so
    # the last to run is told by its place.
    working = [
        (place, block) for place, block in enumerate(blocks) if len(block.tasks.backward.tasks)
    ]
    for place, block in reversed(working):
        gather = _gathers(block.storage.sync, context)
        _add_block(builder, block, block.tasks.backward, gather, context, place=place)
        bucket += [
            group
            for group in block.storage.sync
            if group.every_micro_batch or (last_micro_batch and context.overlap_gradients)
        ]
        if place == working[0][0] or _bucket_bytes(bucket) >= context.bucket_bytes:
            _add_reductions(builder, bucket, context, builder.tails[-1])
            bucket = []
    return builder.table()


def chunk_input_gradient(blocks: Sequence[BlockParts], context: ChunkContext) -> TaskTable:
    """Return the part of a chunk's backward that the stage before waits for.

    Args:
        blocks: In model order, compiled with their backward in two pieces.
        context: How traffic becomes tasks.
    """
    builder = _Builder()
    for place, block in reversed(list(enumerate(blocks))):
        table = block.tasks.input_gradient
        assert table is not None
        if len(table.tasks):
            gather = _gathers(block.storage.sync, context)
            _add_block(builder, block, table, gather, context, place=place)
    return builder.table()


def chunk_weight_gradient(
    blocks: Sequence[BlockParts], context: ChunkContext, *, last_micro_batch: bool
) -> TaskTable:
    """Return the part of a chunk's backward that nobody waits for but the reductions.

    Products of saved inputs and gradients: no parameter is read, so none is gathered.

    Args:
        blocks: In model order, compiled with their backward in two pieces.
        context: How traffic becomes tasks.
        last_micro_batch: Accumulated gradients leave now, if overlapped.
    """
    builder = _Builder()
    bucket: list[SyncGroup] = []
    for place, block in reversed(list(enumerate(blocks))):
        table = block.tasks.weight_gradient
        assert table is not None
        if len(table.tasks):
            _add_block(builder, block, table, np.zeros(0, TASK), context, place=place)
        bucket += [
            group
            for group in block.storage.sync
            if group.every_micro_batch or (last_micro_batch and context.overlap_gradients)
        ]
        if _bucket_bytes(bucket) >= context.bucket_bytes:
            _add_reductions(builder, bucket, context, builder.tails[-1] if builder.tails else -1)
            bucket = []
    if bucket:
        _add_reductions(builder, bucket, context, builder.tails[-1] if builder.tails else -1)
    return builder.table()


def _add_block(
    builder: _Builder,
    block: BlockParts,
    table: TaskTable,
    gather: np.ndarray,
    context: ChunkContext,
    *,
    place: int,
) -> None:
    """Append a block, the one at `place` of the chunk, after what it gathers.

    Gathers run beside the block before; without overlap they wait for it.
    """
    before = builder.exit
    gathered = -1
    if len(gather):
        gathered = builder.append(gather) + len(gather) - 1
        first = gathered - len(gather) + 1
        ahead = _PREFETCHED_BLOCKS if context.overlap_parameters else 1
        if len(builder.tails) >= ahead:
            builder.link(builder.tails[-ahead], first)
        else:
            builder.prefetch.append(first)
    start = builder.append(table.tasks, table.edges)
    builder.ledger.append(at_block(shifted(table.ledger, start), place))
    computes = np.flatnonzero(table.tasks["stream"] == Stream.COMPUTE)
    if len(computes):
        builder.link(builder.blocker, start + int(computes[0]))
        builder.blocker = -1
    if gathered >= 0 and len(computes):
        builder.link(gathered, start + int(computes[0]))
        # The gathered copy lives until the block is done.
        release = builder.append(_release(float(gather["alloc_bytes"].sum()), context.name))
        builder.link(start + int(computes[-1]), release)
        whole = context.items(Item("gathered", "gathered", block.name, "parameters"))
        for task, size in enumerate(gather["alloc_bytes"].tolist(), start=first):
            builder.ledger.append(entries([(task, False, whole, place, 1, size)]))
            builder.ledger.append(entries([(release, True, whole, place, -1, -size)]))
    for entry in table.entries:
        if before >= 0:
            builder.link(before, start + entry)
        else:
            builder.entries.append(start + entry)
    if len(computes):
        builder.tails.append(start + int(computes[-1]))
    if table.exit >= 0:
        builder.exit = start + table.exit


def _release(size_bytes: float, name: Callable[[str], int]) -> np.ndarray:
    """Return the moment at which a gathered copy is dropped: a task of no time on the host."""
    task = np.zeros(1, TASK)
    task["kind"], task["stream"], task["axes"] = TaskKind.HOST, Stream.HOST, -1
    task["phase"], task["stage"] = Phase.SYNCHRONIZATION, StageLabel.COMPUTING
    task["category"], task["free_bytes"] = GATHERED, size_bytes
    task["name"] = name("parameters.release")
    return task


def _gathers(sync: Sequence[SyncGroup], context: ChunkContext) -> np.ndarray:
    """All-gathers of sharded parameters for use, one task for groups over the same axes."""
    sizes: dict[tuple[str, ...], float] = {}
    for group in sync:
        if group.gather_axes:
            sizes[group.gather_axes] = sizes.get(group.gather_axes, 0.0) + group.gather_bytes[0]
    tasks = [np.zeros(0, TASK)]
    for axes, size in sizes.items():
        task = sync_tasks(
            CollectiveKind.ALL_GATHER,
            axes,
            size,
            context,
            label="parameters.gather",
            stream=Stream.GATHER,
            overlaps=True,
        )
        task["alloc_bytes"], task["category"] = size, GATHERED
        tasks.append(task)
    return joined(tasks)


def updates(sync: Sequence[SyncGroup], context: ChunkContext) -> np.ndarray:
    """All-gathers of parameters that a sharded optimiser updated."""
    tasks = [
        sync_tasks(
            CollectiveKind.ALL_GATHER,
            group.update_axes,
            float(group.gather_bytes[0]),
            context,
            label="parameters.update",
            stream=Stream.GATHER,
        )
        for group in sync
        if group.update_axes
    ]
    return joined(tasks)


def _bucket_bytes(bucket: Sequence[SyncGroup]) -> float:
    return float(sum(group.reduce_bytes[0] for group in bucket))


def _add_reductions(
    builder: _Builder, bucket: Sequence[SyncGroup], context: ChunkContext, after: int
) -> None:
    tasks = reductions(bucket, context)
    if len(tasks):
        first = builder.append(tasks)
        builder.ledger.append(_staging(tasks, first, context))
        builder.link(after, first)
        if after < 0:
            builder.entries.append(first)
        if not context.overlap_gradients:
            builder.blocker = first + len(tasks) - 1


def _staging(tasks: np.ndarray, first: int, context: ChunkContext) -> np.ndarray:
    """Return the ledger of what reductions stage, the first of which is task `first`."""
    item = context.items(Item("gradients", "buffer", "", "bucket under reduction"))
    lines = []
    for task, size in enumerate(tasks["alloc_bytes"].tolist(), start=first):
        lines += [(task, False, item, 0, 1, size), (task, True, item, 0, -1, -size)]
    return entries(lines)


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
    return sync_tasks(kind, axes, size, context, label="gradients.reduce", stream=Stream.REDUCE)
