"""Makes tasks of the traffic of a chunk's blocks: parameters, gradients, activations.

`micro_batch` decides their order and their overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.tasks.copies import copy_task
from wattree.compiler.tasks.ledger import Item, Items, Line
from wattree.compiler.tasks.table import NO_TASKS, TASK, BlockTasks, joined
from wattree.cost import GroupShape
from wattree.cost.rates import Rates
from wattree.graph import OperatorClass, Phase, StageLabel, TaskKind
from wattree.lowering.collective_costs import collective_costs
from wattree.lowering.movement import Movement
from wattree.lowering.operator_classes import class_between_replicas
from wattree.lowering.program import CollectiveKind
from wattree.lowering.storage import Storage, SyncGroup, together
from wattree.lowering.streams import GATHERED, GRADIENTS, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockParts:
    """The traffic and memory of one block instance.

    Attributes:
        tasks: Its forward and backward.
        storage: Its parameters and their traffic.
        stored_bytes: What it keeps for backward in another memory, copied there and back; 0 for
            nothing. [B]
        tier2_bytes: What it keeps in expanded memory that the device reaches; 0 for nothing. [B]
    """

    tasks: BlockTasks
    storage: Storage
    name: str
    stored_bytes: float = 0.0
    tier2_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkContext:
    """Inputs for turning traffic into tasks.

    Attributes:
        group: Axes → shape of their groups.
        name: String → number.
        axes: Axes → number.
        moves: How data moves in this job.
        items: Tensors that ledgers name by number.
        made: Tasks of collectives by what they depend on: equal blocks have equal ones.
    """

    rates: Rates
    group: Callable[[tuple[str, ...]], GroupShape]
    name: Callable[[str], int]
    axes: Callable[[tuple[str, ...]], int]
    moves: Movement
    items: Items
    made: dict[tuple[object, ...], np.ndarray] = field(default_factory=dict)


def sync_tasks(
    kind: CollectiveKind,
    axes: tuple[str, ...],
    size_bytes: float,
    context: ChunkContext,
    *,
    label: str,
    stream: int,
    alloc_bytes: float = 0.0,
    free_bytes: float = 0.0,
    category: int = 0,
) -> np.ndarray:
    """Return the task of one collective between replicas; none if the group is one rank.

    Equal collectives have one array, which is never written to. The memory that one takes and gives
    back is `alloc_bytes` and `free_bytes`, of a `category`.
    """
    memory = float(alloc_bytes), float(free_bytes), category
    key = kind, axes, float(size_bytes), label, int(stream), memory
    if key not in context.made:
        task = _sync_task(kind, axes, size_bytes, context, label=label, stream=stream)
        task["alloc_bytes"], task["free_bytes"], task["category"] = memory
        context.made[key] = task
    return context.made[key]


def _sync_task(
    kind: CollectiveKind,
    axes: tuple[str, ...],
    size_bytes: float,
    context: ChunkContext,
    *,
    label: str,
    stream: int,
) -> np.ndarray:
    group = context.group(axes)
    if size_bytes <= 0 or float(group.ranks[0]) <= 1:
        return NO_TASKS
    costs = collective_costs(kind, np.array([size_bytes]), group, context.rates)
    latency, work, wire, scale_up, adapter, uplink, in_turn = (float(v[0]) for v in costs)
    task = np.zeros(1, TASK)
    task["kind"] = TaskKind.COLLECTIVE
    task["stream"], task["axes"] = stream, context.axes(axes)
    task["overlaps"], task["in_turn"] = True, in_turn > 0
    task["phase"], task["stage"] = Phase.SYNCHRONIZATION, StageLabel.COMMUNICATING
    task["name"], task["operator_class"] = context.name(label), class_between_replicas(kind)
    task["latency_s"], task["work_s"], task["wire_bytes"] = latency, work, wire
    task["scale_up_bytes"], task["adapter_bytes"] = scale_up, adapter
    task["uplink_bytes"] = uplink
    return task


def _shard_copy(size_bytes: float, context: ChunkContext, label: str) -> np.ndarray:
    """Return the copy of sharded parameters or gradients, which computation waits for."""
    if size_bytes <= 0:
        return NO_TASKS
    task = np.zeros(1, TASK)
    task["kind"], task["stream"], task["axes"] = TaskKind.COMPUTE, Stream.COMPUTE, -1
    task["phase"], task["stage"] = Phase.SYNCHRONIZATION, StageLabel.COMPUTING
    task["name"], task["operator_class"] = context.name(label), OperatorClass.DATA_LAYOUT
    task["work_s"] = size_bytes / context.rates.memory_bytes_per_s
    task["traffic_bytes"] = size_bytes
    return task


def copy_edges(tasks: np.ndarray, *, ahead: bool) -> list[tuple[int, int]]:
    """Return edges between collectives and the copies of shards next to them.

    Args:
        ahead: A copy is made before the collective, otherwise of its result.
    """
    copies = np.flatnonzero(tasks["kind"] == TaskKind.COMPUTE).tolist()
    return [(copy, copy + 1) if ahead else (copy - 1, copy) for copy in copies]


def copy_of_saved(block: BlockParts, context: ChunkContext, *, out: bool) -> np.ndarray:
    """Copy the tensors that a block saves for backward out of or into the device."""
    moves = context.moves
    assert moves.offload.activations is not None
    task = copy_task(
        moves.tiers[moves.offload.activations],
        block.stored_bytes,
        out=out,
        name=context.name("activations.copy out" if out else "activations.copy in"),
        phase=Phase.FORWARD if out else Phase.BACKWARD,
        category=0,
    )
    task["free_bytes" if out else "alloc_bytes"] = block.stored_bytes
    return task


def gradients_of(block: BlockParts, context: ChunkContext) -> int:
    """Return the ledger item of a block's gradients."""
    return context.items(Item("gradients", "stored", block.name, "gradients"))


def release(size_bytes: float, name: Callable[[str], int]) -> np.ndarray:
    """Return the zero-time host task that frees a gathered copy."""
    task = np.zeros(1, TASK)
    task["kind"], task["stream"], task["axes"] = TaskKind.HOST, Stream.HOST, -1
    task["phase"], task["stage"] = Phase.SYNCHRONIZATION, StageLabel.COMPUTING
    task["category"], task["free_bytes"] = GATHERED, size_bytes
    task["name"], task["operator_class"] = name("parameters.release"), OperatorClass.HOST
    return task


def gathers(storage: Storage, context: ChunkContext) -> np.ndarray:
    """Collectives and copies that bring parameters to the device: a copy in, all-gathers of shards.

    One gather for groups over the same axes.
    """
    moves = context.moves
    sizes = together(
        storage.sync,
        lambda group: group.gather_axes,
        lambda group: np.array(
            [size := group.gather_bytes[0], group.gather_copy_bytes[0], size * group.live_share]
        ),
    )
    tasks = [NO_TASKS]
    if moves.offload.parameters is not None and storage.parameters[0] > 0:
        size = float(storage.parameters[0])
        copy = copy_task(
            moves.tiers[moves.offload.parameters],
            size,
            out=False,
            name=context.name("parameters.copy in"),
            phase=Phase.SYNCHRONIZATION,
            category=GATHERED,
        )
        copy["alloc_bytes"] = size
        tasks.append(copy)
    for axes, (size, copied, live) in sizes.items():
        task = sync_tasks(
            CollectiveKind.ALL_GATHER,
            axes,
            size,
            context,
            label="parameters.gather",
            stream=moves.stream("parameters", Stream.GATHER),
            alloc_bytes=live,
            category=GATHERED,
        )
        tasks.append(task)
        if len(task):
            tasks.append(_shard_copy(float(copied), context, "parameters.copy"))
    return joined(tasks)


def rows_of_tables(storage: Storage, context: ChunkContext, *, out: bool) -> np.ndarray:
    """Copy looked-up rows of offloaded tables in, or their gradients out."""
    moves, size = context.moves, storage.rows_out if out else storage.rows_in
    if size is None or moves.offload.tables is None:
        return NO_TASKS
    task = copy_task(
        moves.tiers[moves.offload.tables],
        float(size[0]),
        out=out,
        name=context.name("tables.gradients out" if out else "tables.rows in"),
        phase=Phase.BACKWARD if out else Phase.FORWARD,
        category=GRADIENTS if out else GATHERED,
    )
    if not out:
        task["alloc_bytes"] = float(size[0])
    return task


def from_first_rank(storages: Sequence[Storage], context: ChunkContext) -> np.ndarray:
    """Return the traffic of the `nn.DataParallel` process before each forward.

    Samples from the first device to all (as much through its port as in a gather of all of them),
    then the parameters.
    """
    if not context.moves.single_process:
        return NO_TASKS
    parameters = float(sum(storage.parameters[0] for storage in storages))
    sent = (
        (CollectiveKind.ALL_GATHER, context.moves.sample_bytes, "samples.scatter"),
        (CollectiveKind.BROADCAST, parameters, "parameters.broadcast"),
    )
    return joined(
        [
            sync_tasks(
                kind, context.moves.replica_axes, size, context, label=label, stream=Stream.GATHER
            )
            for kind, size, label in sent
        ]
    )


def update_portions(storages: Sequence[Storage], context: ChunkContext) -> list[NDArray[np.void]]:
    """Return all-gathers of the parameters that sharded optimizers updated, one list per block.

    A bucket of several blocks is gathered before the first of them.
    """
    portions, bucket, first = [NO_TASKS] * len(storages), list[SyncGroup](), 0
    for index, storage in enumerate(storages):
        bucket += storage.sync
        sizes = together(
            bucket, lambda group: group.update_axes, lambda g: float(g.gather_bytes[0])
        )
        is_full = sum(sizes.values()) >= context.moves.parameter_bucket_bytes
        if is_full or index + 1 == len(storages):
            portions[first] = joined([_update(axes, size, context) for axes, size in sizes.items()])
            bucket, first = [], index + 1
    return portions


def _update(axes: tuple[str, ...], size_bytes: float, context: ChunkContext) -> NDArray[np.void]:
    return sync_tasks(
        CollectiveKind.ALL_GATHER,
        axes,
        size_bytes,
        context,
        label="parameters.update",
        stream=context.moves.stream("parameters", Stream.GATHER),
    )


def staging_lines(tasks: np.ndarray, first: int, context: ChunkContext) -> list[Line]:
    """Return the ledger of the staging buffers of reductions, which start at task `first`."""
    item = context.items(Item("gradients", "buffer", "", "bucket under reduction"))
    lines: list[Line] = []
    for task, size in enumerate(tasks["alloc_bytes"].tolist(), start=first):
        lines += [(task, False, item, 0, 1, size), (task, True, item, 0, -1, -size)]
    return lines


def dropped_gradients(blocks: Sequence[BlockParts], task: int, context: ChunkContext) -> list[Line]:
    """Return the ledger of a task that frees the gradients of blocks at its end."""
    sizes = [context.moves.passing_gradients(block.storage) for block in blocks]
    return [
        (task, True, gradients_of(block, context), 0, -1, -size)
        for block, size in zip(blocks, sizes, strict=True)
        if size
    ]


def reductions(bucket: Sequence[SyncGroup], context: ChunkContext) -> np.ndarray:
    """Return the reductions of a bucket of gradients, groups over the same axes together.

    Gradients that are stored as shards exist as a whole only here: in the buffer from which they
    are scattered. Those that are stored whole are reduced where they lie.
    """
    sizes = together(
        bucket,
        lambda group: (group.scatter_axes, group.reduce_axes),
        lambda group: np.array([group.reduce_bytes[0], group.reduce_copy_bytes[0]]),
    )
    staged = together(
        (group for group in bucket if group.is_staged),
        lambda group: group.scatter_axes,
        lambda group: float(group.reduce_bytes[0] * group.live_share),
    )
    tasks = [NO_TASKS]
    for (scatter, rest), (size, copied) in sizes.items():
        if scatter:
            held = staged.pop(scatter, 0.0)
            kind = CollectiveKind.REDUCE_SCATTER
            task = _reduction(kind, scatter, size, context, held_bytes=held)
            if len(task):
                tasks.append(_shard_copy(float(copied), context, "gradients.copy"))
            tasks.append(task)
        if rest:
            shard = size / float(context.group(scatter).ranks[0])
            to_first = context.moves.single_process
            kind = CollectiveKind.REDUCE if to_first else CollectiveKind.ALL_REDUCE
            tasks.append(_reduction(kind, rest, shard, context))
    return joined(tasks)


def _reduction(
    kind: CollectiveKind,
    axes: tuple[str, ...],
    size: float,
    context: ChunkContext,
    *,
    held_bytes: float = 0.0,
) -> np.ndarray:
    return sync_tasks(
        kind,
        axes,
        size,
        context,
        label="gradients.reduce",
        stream=context.moves.stream("gradients", Stream.REDUCE),
        alloc_bytes=held_bytes,
        free_bytes=held_bytes,
        category=GRADIENTS if kind is CollectiveKind.REDUCE_SCATTER else 0,
    )
