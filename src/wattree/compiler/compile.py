"""Model, strategy, cluster → execution graph: the passes in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.arrays import execution_graph
from wattree.compiler.block import ModelProgram, compile_model
from wattree.compiler.block_tasks import Pipelining, block_tasks
from wattree.compiler.chunk import BlockParts, ChunkContext
from wattree.compiler.evaluate import BlockCosts, GroupShapes, Placement, block_costs
from wattree.compiler.fits import check_fits
from wattree.compiler.kinds import RankKind, RankKinds, RankPlacement, axes_sets, rank_kinds
from wattree.compiler.links import alone_s, rank_rates
from wattree.compiler.merge import merged
from wattree.compiler.pairs import PairedTables
from wattree.compiler.program import Scale
from wattree.compiler.rank_classes import rank_classes
from wattree.compiler.stage import (
    ChunkTables,
    StageProgram,
    Update,
    chunk_tables,
    stage_program,
)
from wattree.compiler.stages import cut_chunks
from wattree.compiler.storage import (
    Storage,
    SyncGroup,
    block_storage,
    optimizer_state_bytes,
)
from wattree.compiler.tasks import CATEGORIES, TASK, Names
from wattree.compiler.topology import LinkUse, MeshTopology
from wattree.cost import GroupShape, Software
from wattree.cost.rates import Rates
from wattree.errors import StrategyError
from wattree.graph import ExecutionGraph, ModelGraph, StageLabel, TaskKind
from wattree.hardware import Cluster
from wattree.strategy import Strategy
from wattree.strategy.schedules import Work

__all__ = ["DEFAULT_BUCKET_BYTES", "Compilation", "compile_job", "update_traffic_bytes"]

#: PyTorch DDP's default bucket (torch.nn.parallel.DistributedDataParallel, bucket_cap_mb).
DEFAULT_BUCKET_BYTES = 25.0 * 2**20
#: Bytes the optimiser moves per updated parameter besides reading and writing its state: fp32
#: gradient read and cleared, 16-bit parameter written.
_UPDATE_BYTES = 10.0
#: Tasks of one step that are built at most: some 5 GiB of arrays.
_MOST_TASKS = 20_000_000
#: Bytes of one token id as loaders hand it to the device (int64).
_TOKEN_BYTES = 8.0

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """What compiling a job yields.

    Attributes:
        graph: To play.
        program: Block programs.
        costs: Costs of each program, one strategy wide; on the first kind of rank.
        topology: The mesh on the cluster.
        class_pools: Pool of each rank class's devices, `(C,)`.
    """

    graph: ExecutionGraph
    program: ModelProgram
    costs: tuple[BlockCosts, ...]
    topology: MeshTopology
    class_pools: NDArray[np.int64]


def compile_job(
    model: ModelGraph,
    strategy: Strategy,
    cluster: Cluster,
    *,
    rates: Rates | Sequence[Rates],
    software: Software,
    optimizer: str,
    sequence: int,
    global_batch: int,
    fold: bool = True,
    detail: bool = True,
) -> Compilation:
    """Return the execution graph of one training step.

    Args:
        model: What to train.
        strategy: How.
        cluster: On what; its devices beyond the mesh stay idle.
        rates: What its devices reach, by pool; of a single pool just that.
        software: Habits of the software.
        optimizer: Name of the optimiser.
        sequence: Tokens per sample.
        global_batch: Samples per step.
        fold: One class for ranks that do the same; otherwise every rank is played.
        detail: A task per operator; otherwise runs of undisturbed compute are merged, which
            changes no time.

    Raises:
        StrategyError: The strategy fits neither the model nor the cluster; every misfit listed.
    """
    active = frozenset(axis for axis, degree in strategy.mesh.axes if degree > 1)
    check_fits(model, strategy, cluster, global_batch=global_batch, sequence=sequence)
    program = compile_model(model, strategy.tree, active)
    topology = MeshTopology(mesh=strategy.mesh, cluster=cluster)
    scale = _scale(strategy, program, sequence, global_batch)
    state = optimizer_state_bytes(optimizer)
    storages = tuple(block_storage(p, scale, software, state) for p in program.programs)
    by_pool = (rates,) if isinstance(rates, Rates) else tuple(rates)
    assert len(by_pool) == len(cluster.pools), "rates of every pool"
    kinds = rank_kinds(topology, axes_sets(program, storages), [each.links for each in by_pool])
    placements = [_placement(topology, kind, active) for kind in kinds.kinds]
    steps = [
        _Step(
            program=program,
            strategy=strategy,
            topology=topology,
            kind=kind,
            costs=tuple(
                block_costs(p, scale, placement, by_pool[kind.pool], software)
                for p in program.programs
            ),
            storages=storages,
            rates=by_pool[kind.pool],
            software=software,
            state_bytes=state,
            input_bytes=float(scale.micro_batch[0]) * sequence * _TOKEN_BYTES,
        )
        for kind, placement in zip(kinds.kinds, placements, strict=True)
    ]
    graph, class_pools = _graph(steps, kinds, by_pool, fold=fold, detail=detail)
    return Compilation(
        graph=graph,
        program=program,
        costs=steps[0].costs,
        topology=topology,
        class_pools=class_pools,
    )


def _placement(topology: MeshTopology, kind: RankKind, active: frozenset[str]) -> GroupShapes:
    """Return how groups lie for ranks of a kind."""
    if topology.cluster.is_mixed:
        return RankPlacement(shapes=kind.shapes)
    shapes = {axis: topology.group((axis,)) for axis in active}
    return Placement(
        inside={axis: shape.inside for axis, shape in shapes.items()},
        in_leaf={
            axis: shape.in_leaf for axis, shape in shapes.items() if shape.in_leaf is not None
        },
    )


def update_traffic_bytes(elements: Floats, state_bytes: float, software: Software) -> Floats:
    """Return the memory traffic of updating `elements` parameters. [B]"""
    return elements * (2 * (state_bytes + software.master_bytes) + _UPDATE_BYTES)


def _scale(strategy: Strategy, program: ModelProgram, sequence: int, global_batch: int) -> Scale:
    replicas = strategy.mesh.size(program.batch_axes)
    micro_batch = global_batch / (strategy.schedule.micro_batches * replicas)
    return Scale(
        micro_batch=np.array([micro_batch]),
        sequence=float(sequence),
        degrees={axis: np.array([float(degree)]) for axis, degree in strategy.mesh.axes},
        batch_axes=program.batch_axes,
    )


def _habit(*, choice: bool | None, default: bool) -> bool:
    return default if choice is None else choice


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """All that one training step is made of on ranks of a kind, before it becomes tasks."""

    program: ModelProgram
    strategy: Strategy
    topology: MeshTopology
    kind: RankKind
    costs: tuple[BlockCosts, ...]
    storages: tuple[Storage, ...]
    rates: Rates
    software: Software
    state_bytes: float
    input_bytes: float  # of one micro-batch on one rank

    @property
    def boundary_bytes(self) -> float:
        """What a stage hands to the next for one micro-batch. [B]"""
        return max(float(costs.boundary_bytes[0]) for costs in self.costs)

    @property
    def group(self) -> Callable[[tuple[str, ...]], GroupShape]:
        """How groups over axes look to these ranks."""
        if self.topology.cluster.is_mixed:
            return self.kind.shapes.__getitem__
        return self.topology.group


def _graph(
    steps: Sequence[_Step],
    kinds: RankKinds,
    rates: Sequence[Rates],
    *,
    fold: bool,
    detail: bool,
) -> tuple[ExecutionGraph, NDArray[np.int64]]:
    """Return the graph, and the pool of each rank class."""
    step = steps[0]
    names = Names()
    axes_index: dict[tuple[str, ...], int] = {}
    # Orders are long too: what is certainly too much is refused before they are written.
    _check_count(step, 2 * len(step.program.instances))
    topology, count = step.topology, step.strategy.mesh.degree("pp")
    of_stage = [kinds.of_stage(topology.stage_ranks(stage)) for stage in range(count)]
    uses = topology.links()
    found: list[list[StageProgram]] = [[] for _ in range(count)]
    residents = [np.zeros(0)] * count
    for number, own in enumerate(steps):
        stages = [stage for stage in range(count) if number in of_stage[stage]]
        parts = _parts(own, names, axes_index, detail=detail)
        for stage, (program, resident) in _stages(own, parts, names, axes_index, stages).items():
            found[stage].append(_played_alone(program, own, uses, axes_index))
            residents[stage] = resident
    classes, links = rank_classes(
        topology,
        axes_index,
        residents,
        boundary_bytes=step.boundary_bytes,
        rates=rates,
        kinds=kinds,
        fold=fold,
        mirrored=step.strategy.schedule.placed(count).copies > 1,
    )
    graph = execution_graph(
        [_as_one(programs) for programs in found],
        classes,
        links=links,
        names=tuple(names.index),
        # Of the software and the calibration, not of the device: pools have them in common.
        compute_rate_while_communicating=step.rates.overlap_compute_rate,
        communication_rate_while_computing=1.0,
    )
    return graph, np.concatenate([stage.pool for stage in classes if stage.pool is not None])


def _as_one(programs: Sequence[StageProgram]) -> StageProgram:
    """Return the program of a stage that ranks of several kinds run: the same but for times."""
    first, *others = programs
    if not others:
        return first
    for other in others:
        alike = len(other.tasks) == len(first.tasks) and np.array_equal(other.edges, first.edges)
        assert alike, "what a rank does does not depend on its device"
    return replace(first, of_kinds=tuple(program.tasks for program in programs))


def _played_alone(
    program: StageProgram,
    step: _Step,
    uses: Sequence[LinkUse],
    axes_index: dict[tuple[str, ...], int],
) -> StageProgram:
    """Return a program whose tasks have the work of when no other uses their links.

    Closed forms reckon with all groups at once; the executor shares links by itself.
    """
    if not step.kind.shares:
        return program
    shares = {number: step.kind.shares[axes] for axes, number in axes_index.items()}
    tasks = program.tasks.copy()
    tasks["work_s"] = alone_s(tasks, uses, shares, rank_rates(step.rates.links))
    return replace(program, tasks=tasks)


def _parts(
    step: _Step, names: Names, axes_index: dict[tuple[str, ...], int], *, detail: bool
) -> tuple[BlockParts, ...]:
    """Return tasks and storage of every block program."""
    overlap = _habit(choice=step.strategy.overlap_tensor, default=step.software.overlap_tensor)
    pipelining = Pipelining(
        tensor_exposed_share=step.rates.tensor_exposed_share if overlap else 1.0,
        context_exposed_share=0.0,
    )
    split = _splits_backward(step.strategy)
    parts = []
    for costs, storage in zip(step.costs, step.storages, strict=True):
        tasks = block_tasks(costs, pipelining, names, axes_index, split=split)
        if not detail:
            tasks = tasks.changed(merged)
        parts.append(BlockParts(tasks=tasks, storage=storage))
    return tuple(parts)


def _stages(
    step: _Step,
    parts: Sequence[BlockParts],
    names: Names,
    axes_index: dict[tuple[str, ...], int],
    wanted: Sequence[int],
) -> dict[int, tuple[StageProgram, Floats]]:
    """Return the program of each stage that is wanted, and what it holds for the whole step."""
    strategy, software = step.strategy, step.software
    context = ChunkContext(
        rates=step.rates,
        group=step.group,
        name=names,
        axes=lambda axes: axes_index.setdefault(axes, len(axes_index)),
        bucket_bytes=strategy.bucket_bytes or DEFAULT_BUCKET_BYTES,
        overlap_gradients=_habit(
            choice=strategy.overlap_gradients, default=software.overlap_gradients
        ),
        overlap_parameters=_habit(
            choice=strategy.overlap_parameters, default=software.overlap_parameters
        ),
    )
    stages, schedule = strategy.mesh.degree("pp"), strategy.schedule
    chunks = cut_chunks(step.program, stages, schedule)
    transfer = _transfer(names)
    _check_size(step, parts)
    tables: dict[tuple[int, ...], ChunkTables] = {}
    placement, orders = schedule.placed(stages), schedule.orders(stages)
    split = _splits_backward(strategy)
    pairs = PairedTables()
    found = {}
    for stage in wanted:
        keys = [
            tuple(step.program.instances[i] for i in chunks[placement.model_chunk(stage, chunk)])
            for chunk in range(placement.chunks)
        ]
        for key in keys:
            if key not in tables:
                tables[key] = chunk_tables([parts[i] for i in key], context, split=split)
        held = [[parts[index] for index in key] for key in keys]
        blocks = [block for chunk in held for block in chunk]
        program = stage_program(
            orders[stage],
            [tables[key] for key in keys],
            held,
            context,
            _update(step, blocks),
            stage=stage,
            placement=placement,
            transfer=transfer,
            blocking_transfers=stages > 1 and not software.overlap_pipeline,
            pairs=pairs,
        )
        found[stage] = program, _resident(blocks, software, stages)
    return found


def _splits_backward(strategy: Strategy) -> bool:
    """Whether some stage makes its weight gradients apart."""
    orders = strategy.schedule.orders(strategy.mesh.degree("pp"))
    return any(slot.work is Work.INPUT_GRADIENT for order in orders for slot in order)


def _check_size(step: _Step, parts: Sequence[BlockParts]) -> None:
    """Refuse a step of more tasks than memory can hold, before anything is built."""
    _check_count(
        step,
        sum(
            len(parts[index].tasks.forward.tasks) + len(parts[index].tasks.backward.tasks)
            for index in step.program.instances
        ),
    )


def _check_count(step: _Step, per_micro_batch: int) -> None:
    tasks = per_micro_batch * step.strategy.schedule.micro_batches
    if tasks > _MOST_TASKS:
        raise StrategyError(
            {
                "strategy.schedule.micro_batches": f"{step.strategy.schedule.micro_batches:,} "
                f"micro-batches make {tasks:,} tasks, more than the {_MOST_TASKS:,} that can be "
                "played; use a larger micro-batch or a smaller data.global_batch"
            }
        )


def _update(step: _Step, blocks: Sequence[BlockParts]) -> Update:
    """Return the end of a stage's step."""
    updated = np.array(sum(block.storage.updated_elements[0] for block in blocks))
    traffic = float(update_traffic_bytes(updated, step.state_bytes, step.software))
    node = step.topology.cluster.pools[step.kind.pool].node
    read_s = step.input_bytes * node.devices / node.host.storage_read_bytes_per_s
    return Update(
        time_s=traffic / step.rates.memory_bytes_per_s,
        traffic_bytes=traffic,
        overhead_s=step.rates.step_overhead_s,
        input_s=read_s + step.input_bytes / node.device.host_link_bytes_per_s,
        gradient_bytes=float(updated) * step.software.reduce_bytes,
    )


def _transfer(names: Names) -> np.void:
    """Return the record of a transfer between stages; its costs depend on the class."""
    task = np.zeros(1, TASK)
    task["kind"], task["axes"] = TaskKind.TRANSFER, -1
    task["stage"] = StageLabel.COMMUNICATING
    task["name"] = names("stage boundary")
    record: np.void = task[0]
    return record


def buffer_bytes(sync: Sequence[SyncGroup], software: Software, stages: int) -> float:
    """Return the communication buffers of a sharded optimiser. [B]"""
    sharded = any(group.update_axes for group in sync)
    return software.zero_buffer_bytes if sharded and stages == 1 else 0.0


def _resident(blocks: Sequence[BlockParts], software: Software, stages: int) -> Floats:
    row = np.zeros(len(CATEGORIES))
    sync = [group for block in blocks for group in block.storage.sync]
    row[CATEGORIES.index("overhead")] = buffer_bytes(sync, software, stages)
    for block in blocks:
        row[CATEGORIES.index("parameters")] += block.storage.parameters[0]
        row[CATEGORIES.index("gradients")] += block.storage.gradients[0]
        row[CATEGORIES.index("optimizer")] += block.storage.optimizer[0]
    return row
