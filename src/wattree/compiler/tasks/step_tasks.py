"""The programs of a job's stages, at every level of ranks: runs passes 5 to 9."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from wattree.compiler.folding.rank_classes import RanksOfJob
from wattree.compiler.tasks.blocks import block_tasks
from wattree.compiler.tasks.chunk import BlockParts, ChunkContext, sync_tasks
from wattree.compiler.tasks.chunk_tables import ChunkTables
from wattree.compiler.tasks.ledger import Holding, Items
from wattree.compiler.tasks.merge import merged
from wattree.compiler.tasks.offload import (
    check_capacity,
    offloaded_shares,
    saved_bytes,
    stored_layers,
    waiting_bytes,
)
from wattree.compiler.tasks.pairs import PairedTables
from wattree.compiler.tasks.slots import SlotTransfers
from wattree.compiler.tasks.stage import Update, stage_program
from wattree.compiler.tasks.stage_program import StageProgram
from wattree.compiler.tasks.static_memory import stage_holdings, static_bytes
from wattree.compiler.tasks.table import TASK, Names, TaskTable, joined
from wattree.errors import StrategyError
from wattree.graph import (
    OperatorClass,
    Phase,
    StageLabel,
    TaskKind,
)
from wattree.lowering.colocation import step_barrier_s
from wattree.lowering.dataflow import chunk_stages, entering, entering_bytes
from wattree.lowering.links import alone_s, rank_rates
from wattree.lowering.loading import loading_stages
from wattree.lowering.mesh_borders import Arrival
from wattree.lowering.overlap import Pipelining
from wattree.lowering.step import LoweredJob, LoweredStep
from wattree.lowering.streams import Stream
from wattree.lowering.topology import LinkUse
from wattree.strategy import Strategy
from wattree.strategy.schedules import Order, Shortened, SlotWork

#: Tasks of one step that are built at most: some 5 GiB of arrays.
_MOST_TASKS = 20_000_000


def stages_and_ranks(
    steps: LoweredJob,
    names: Names,
    items: Items,
    *,
    detail: bool,
    orders: Sequence[Order],
) -> tuple[list[list[BuiltStage]], RanksOfJob]:
    """Return the stages of a job, each for all its levels or kinds of ranks, and its ranks."""
    axes_index: dict[tuple[str, ...], int] = {}
    step, topology = steps.of_kind[0], steps.topology
    numbers, uses = topology.mesh.stage_numbers, topology.links()
    of_stage = [steps.kinds.of_stage(topology.stage_ranks(stage)) for stage in numbers]
    found: list[list[BuiltStage]] = [[] for _ in numbers]
    for number, own in enumerate(steps.of_kind):
        stages = [s for s, kinds in zip(numbers, of_stage, strict=True) if number in kinds]
        for level in range(own.level_count):
            parts = _parts(own, names, items, axes_index, detail=detail, level=level)
            context = _context(own, names, items, axes_index)
            wanted = {stage: orders[stage] for stage in stages}
            made = _stages(own, parts, context, level=level, orders=wanted)
            for stage, built in made.items():
                found[stage - numbers.start].append(built)
    for own_levels, kinds in zip(found, of_stage, strict=True):
        for place, built in enumerate(own_levels):
            own = steps.of_kind[kinds[place]] if len(kinds) > 1 else steps.of_kind[kinds[0]]
            program = _executed_alone(built.program, own, uses, axes_index)
            own_levels[place] = built._replace(program=program)
    levels = None if step.levels is None else step.levels.of_rank
    copied = step.moves.offload.tiers  # what the device reaches overflows, as its own memory does
    waiting = [
        {
            stage: {tier: executed[level].waiting[tier] for tier in copied}
            for stage, executed in zip(numbers, found, strict=True)
        }
        for level in range(step.level_count)
    ]
    check_capacity(topology, waiting, levels)
    ranks = RanksOfJob(
        topology=topology,
        axes_index=axes_index,
        static_memory=[
            np.stack([static_bytes(level.holdings, items) for level in executed])
            for executed in found
        ],
        rates=steps.rates,
        kinds=steps.kinds,
        levels=levels,
        mirrored=step.strategy.schedule.placed(topology.mesh.pipeline).copies > 1,
        label=steps.label,
        before=step.before,
    )
    return found, ranks


def orders_of(
    step: LoweredStep, longer_than: int | None
) -> tuple[Sequence[Order], Shortened | None]:
    """Return what the stages do, in order; without turns of more micro-batches, if asked for."""
    # Orders are long too: what is certainly too much is refused before they are written.
    _check_count(step, 2 * len(step.program.instances))
    schedule, stages = step.strategy.schedule, step.topology.mesh.pipeline
    if longer_than is not None:
        shorter = schedule.shorter(stages, after=longer_than)
        if shorter is not None:
            return shorter.orders, shorter
    return schedule.orders(stages), None


def with_levels(levels: Sequence[BuiltStage]) -> StageProgram:
    """Return the program of a stage with the tasks of ranks of every level or kind.

    They differ in figures alone, so tasks and edges are those of the first.
    """
    first, *others = (executed.program for executed in levels)
    for other in others:
        alike = np.array_equal(other.rows, first.rows) and np.array_equal(other.edges, first.edges)
        assert alike, "what a rank does depends on no figure"
    return replace(first, levels=tuple(other.records for other in others))


class BuiltStage(NamedTuple):
    """A stage as executed by ranks of one level or kind.

    Attributes:
        holdings: What they hold for the whole step.
        waiting: What they have in each memory behind the devices at most: tier → bytes. [B]
    """

    program: StageProgram
    holdings: tuple[Holding, ...]
    waiting: Mapping[str, float]


def _executed_alone(
    program: StageProgram,
    step: LoweredStep,
    uses: Sequence[LinkUse],
    axes_index: dict[tuple[str, ...], int],
) -> StageProgram:
    """Return a program whose tasks have their uncontended work.

    Closed forms count all groups at once; the executor shares links by itself.
    """
    if not step.kind.shares:
        return program
    shares = {number: step.kind.shares[axes] for axes, number in axes_index.items()}
    records = program.records.copy()
    records["work_s"] = alone_s(records, uses, shares, rank_rates(step.rates.links))
    return replace(program, records=records)


def _parts(
    step: LoweredStep,
    names: Names,
    items: Items,
    axes_index: dict[tuple[str, ...], int],
    *,
    detail: bool,
    level: int,
) -> tuple[BlockParts, ...]:
    """Return tasks and storage of every block program for ranks of `level`."""
    pipelining = Pipelining.of(step.rates, step.moves.overlap)
    split = _splits_backward(step.strategy)
    parts = []
    for costs, storage in zip(step.costs, step.storages, strict=True):
        tasks = block_tasks(costs, pipelining, names, axes_index, level, items=items, split=split)
        if not detail:
            tasks = tasks.changed(merged)
        own = storage.at(level)
        tier2 = 0.0 if costs.tier2_saved_bytes is None else float(costs.tier2_saved_bytes[level])
        name = costs.program.block
        parts.append(BlockParts(tasks=tasks, storage=own, name=name, tier2_bytes=tier2))
    return tuple(parts)


def _stages(
    step: LoweredStep,
    parts: Sequence[BlockParts],
    context: ChunkContext,
    *,
    level: int,
    orders: Mapping[int, Order],
) -> dict[int, BuiltStage]:
    """Return each stage that has an order, for ranks of `level`."""
    strategy, software = step.strategy, step.software
    stages, schedule, chunks = strategy.mesh.pipeline, strategy.schedule, step.chunks
    crossing = _crossing(step, chunks)
    transfer = _transfer(context.name)
    _check_size(step, parts)
    tables: dict[tuple[int, ...], ChunkTables] = {}
    placement = schedule.placed(stages)
    split = _splits_backward(strategy)
    pairs = PairedTables()
    found = {}
    layers = step.moves.offload.layers if step.moves.offload.activations else 0
    plain = len(parts)
    parts = [*parts, *_stored(step, parts, level)] if layers else parts
    for stage, order in orders.items():
        numbers = [placement.model_chunk(stage, chunk) for chunk in range(placement.chunks)]
        borders = [crossing[number : number + 2] for number in numbers]
        keys = _part_numbers(step, [chunks[number] for number in numbers], layers, plain)
        for key in keys:
            if key not in tables:
                tables[key] = ChunkTables(
                    [parts[i] for i in key],
                    context,
                    split=split,
                    is_one_of_several=len(keys) > 1,
                )
        held = [[parts[index] for index in key] for key in keys]
        blocks = [block for chunk in held for block in chunk]
        program = stage_program(
            order,
            [tables[key] for key in keys],
            held,
            context,
            _update(step, blocks),
            transfers=SlotTransfers(
                stage, placement, transfer, borders, _arrivals(step, stage, context)
            ),
            blocking_transfers=stages > 1 and not step.moves.overlap.pipeline,
            pairs=pairs,
        )
        found[stage] = BuiltStage(
            program=program,
            holdings=stage_holdings(
                blocks,
                step.moves,
                software,
                context.items,
                input_bytes=_input_bytes(step, stage),
            ),
            waiting=waiting_bytes(step.moves, held, order),
        )
    return found


def _context(
    step: LoweredStep, names: Names, items: Items, axes_index: dict[tuple[str, ...], int]
) -> ChunkContext:
    return ChunkContext(
        rates=step.rates,
        group=step.group,
        name=names,
        axes=lambda axes: axes_index.setdefault(axes, len(axes_index)),
        moves=step.moves,
        items=items,
    )


def _part_numbers(
    step: LoweredStep, chunks: Sequence[Sequence[int]], layers: int, plain: int
) -> list[tuple[int, ...]]:
    """Return the parts of each chunk's blocks; for `layers`, those after the `plain` ones."""
    stored = stored_layers(step.program.model, chunks, layers) if layers else frozenset()
    return [
        tuple(step.program.instances[i] + (plain if i in stored else 0) for i in chunk)
        for chunk in chunks
    ]


def _crossing(step: LoweredStep, chunks: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
    """Return the transfers over the borders of a chunk, both ways: first, last and between."""
    mesh, schedule = step.strategy.mesh, step.strategy.schedule
    given = entering(step.program, chunks, chunk_stages(schedule.placed(mesh.pipeline)))
    found = [(0.0, 0.0), *entering_bytes(given, step.program, step.costs), (0.0, 0.0)]
    ends = mesh.stage_numbers.start, mesh.stage_numbers.stop
    for place, border in zip(ends, (step.before, step.after), strict=True):
        if border is not None:  # of what one rank sends: others send a share of it
            found[place] = border.forward.most_bytes, border.backward.most_bytes
    return found


def _arrivals(
    step: LoweredStep, stage: int, context: ChunkContext
) -> tuple[TaskTable | None, TaskTable | None]:
    """Return the gathers of a stage at a border of its mesh, of received tensors and gradients."""
    numbers = step.topology.mesh.stage_numbers
    before, after = step.before, step.after
    forward = before.forward.arrivals if before and stage == numbers[0] else ()
    backward = after.backward.arrivals if after and stage == numbers[-1] else ()
    return (
        arrival_table(forward, context, backward=False),
        arrival_table(backward, context, backward=True),
    )


def _input_bytes(step: LoweredStep, stage: int) -> float:
    """Return the memory of input batches on a device of a stage. [B]"""
    strategy = step.strategy
    begins = loading_stages(strategy.schedule, strategy.mesh.pipeline)
    return 0.0 if step.loading is None or stage not in begins else step.loading.device_bytes


def _stored(step: LoweredStep, parts: Sequence[BlockParts], level: int) -> list[BlockParts]:
    """Return the blocks with their offloaded activations."""
    shares = offloaded_shares(step.moves.offload.tensors, step.program.model, step.costs)
    return [
        replace(part, stored_bytes=saved_bytes(costs, level, shares=shares))
        for part, costs in zip(parts, step.costs, strict=True)
    ]


def _splits_backward(strategy: Strategy) -> bool:
    """Return whether some stage defers its weight gradients."""
    orders = strategy.schedule.orders(strategy.mesh.pipeline)
    return any(slot.work is SlotWork.INPUT_GRADIENT for order in orders for slot in order)


def _check_size(step: LoweredStep, parts: Sequence[BlockParts]) -> None:
    """Reject a step of more tasks than memory can hold, before anything is built."""
    _check_count(
        step,
        sum(
            len(parts[index].tasks.forward.tasks) + len(parts[index].tasks.backward.tasks)
            for index in step.program.instances
        ),
    )


def _check_count(step: LoweredStep, per_micro_batch: int) -> None:
    micro_batches = step.strategy.schedule.micro_batches
    tasks = per_micro_batch * micro_batches
    if tasks > _MOST_TASKS:
        raise StrategyError(
            {
                "data.global_batch": f"{micro_batches:,} micro-batches make {tasks:,} tasks, more "
                f"than the {_MOST_TASKS:,} that can be simulated; use a smaller batch or a larger "
                "micro-batch"
            }
        )


def _update(step: LoweredStep, blocks: Sequence[BlockParts]) -> Update:
    """Return the end of a stage's step, and its input pipeline."""
    updated = np.array(sum(block.storage.updated_elements[0] for block in blocks))
    node = step.topology.cluster.pools[step.kind.pool].node
    read_s = step.input_bytes * node.devices / node.host.storage_read_bytes_per_s
    shared = step.shared
    waits_s = 0.0
    if shared is not None:
        waits_s = float(step_barrier_s(shared, step.strategy.colocation.processes)[0])
    return Update(
        overhead_s=step.rates.step_overhead_s + waits_s,
        input_s=read_s + step.input_bytes / node.device.host_link_bytes_per_s,
        gradient_bytes=float(updated) * step.software.reduce_bytes,
        loading=step.loading,
    )


def _transfer(name: Callable[[str], int]) -> np.void:
    """Return the record of a transfer between stages; its costs depend on the class."""
    task = np.zeros(1, TASK)
    task["kind"], task["axes"] = TaskKind.TRANSFER, -1
    task["stage"] = StageLabel.COMMUNICATING
    task["name"], task["operator_class"] = name("stage boundary"), OperatorClass.PIPELINE_TRANSFER
    record: np.void = task[0]
    return record


def arrival_table(
    arrivals: Sequence[Arrival], context: ChunkContext, *, backward: bool
) -> TaskTable | None:
    """Return the collectives of one micro-batch, one after another; None if there are none.

    They wait on the stream of transfers: what the blocks exchange meanwhile need not wait for them.
    """
    parts = [
        sync_tasks(
            arrival.kind,
            arrival.axes,
            arrival.size_bytes,
            context,
            label="stage boundary",
            stream=Stream.SEND_PREVIOUS if backward else Stream.SEND_NEXT,
        )
        for arrival in arrivals
    ]
    if not any(len(part) for part in parts):
        return None
    tasks = joined(parts)
    tasks["phase"] = Phase.BACKWARD if backward else Phase.FORWARD
    tasks["operator_class"] = OperatorClass.PIPELINE_TRANSFER
    chain = np.array([(i, i + 1) for i in range(len(tasks) - 1)], dtype=np.int64).reshape(-1, 2)
    return TaskTable(tasks=tasks, edges=chain, exit=len(tasks) - 1)
