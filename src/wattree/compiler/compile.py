"""Model, strategy, cluster → execution graph: the passes in the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.arrays import execution_graph
from wattree.compiler.block import ModelProgram, compile_model
from wattree.compiler.block_tasks import Pipelining, block_tasks
from wattree.compiler.chunk import BlockParts, ChunkContext
from wattree.compiler.chunk_tables import ChunkTables
from wattree.compiler.evaluate import BlockCosts, Placement, block_costs
from wattree.compiler.fits import check_fits
from wattree.compiler.ledger import Holding, Items, MemoryLedger, StageLedger
from wattree.compiler.links import alone_s, rank_rates
from wattree.compiler.merge import merged
from wattree.compiler.movement import Movement, movement_of
from wattree.compiler.offload import (
    check_capacity,
    check_shared_tiers,
    kept_bytes,
    offload_misfits,
    stored_layers,
    waiting_bytes,
)
from wattree.compiler.pairs import PairedTables
from wattree.compiler.program import Scale
from wattree.compiler.rank_classes import RanksOfJob, rank_classes
from wattree.compiler.residents import resident_bytes, stage_holdings
from wattree.compiler.stage import (
    StageProgram,
    Update,
    stage_program,
)
from wattree.compiler.stages import cut_chunks
from wattree.compiler.storage import (
    Storage,
    block_storage,
    optimizer_state_bytes,
)
from wattree.compiler.tasks import TASK, Names
from wattree.compiler.tiers import tier_links, tiers_of
from wattree.compiler.topology import MeshTopology
from wattree.cost import Software
from wattree.cost.rates import Rates
from wattree.errors import StrategyError
from wattree.graph import (
    ExecutionGraph,
    JobTasks,
    ModelGraph,
    StageLabel,
    TaskKind,
    tasks_of_jobs,
)
from wattree.hardware import Cluster
from wattree.strategy import Strategy
from wattree.strategy.schedules import Work

__all__ = [
    "Compilation",
    "JobToCompile",
    "compile_job",
    "compile_jobs",
    "update_traffic_bytes",
]

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
        costs: Costs of each program, one strategy wide.
        topology: The mesh on the cluster.
        ledger: What the memory of the graph's tasks and rank classes is made of.
        axes: Sets of mesh axes that collectives run over.
    """

    graph: ExecutionGraph
    program: ModelProgram
    costs: tuple[BlockCosts, ...]
    topology: MeshTopology
    ledger: MemoryLedger
    axes: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobToCompile:
    """One of several jobs on a cluster. Arguments of `compile_job`, and a name.

    Attributes:
        label: What the names of its rank classes begin with.
    """

    model: ModelGraph
    strategy: Strategy
    rates: Rates
    software: Software
    optimizer: str
    sequence: int
    global_batch: int
    devices: NDArray[np.int64] | None = None
    label: str = ""


def compile_job(
    model: ModelGraph,
    strategy: Strategy,
    cluster: Cluster,
    *,
    rates: Rates,
    software: Software,
    optimizer: str,
    sequence: int,
    global_batch: int,
    fold: bool = True,
    detail: bool = True,
    devices: NDArray[np.int64] | None = None,
) -> Compilation:
    """Return the execution graph of one training step.

    Args:
        model: What to train.
        strategy: How.
        cluster: On what; its devices beyond the mesh stay idle.
        rates: What its devices reach.
        software: Habits of the software.
        optimizer: Name of the optimiser.
        sequence: Tokens per sample.
        global_batch: Samples per step.
        fold: One class for ranks that do the same; otherwise every rank is played.
        detail: A task per operator; otherwise runs of undisturbed compute are merged, which
            changes no time.
        devices: Device of each rank; None puts rank r on device r.

    Raises:
        StrategyError: The strategy fits neither the model nor the cluster; every misfit listed.
    """
    job = JobToCompile(
        model=model,
        strategy=strategy,
        rates=rates,
        software=software,
        optimizer=optimizer,
        sequence=sequence,
        global_batch=global_batch,
        devices=devices,
    )
    step = _step(job, cluster, _tiers([job]))
    graph, ledger, jobs, _ = _graph([step], fold=fold, detail=detail)
    return Compilation(
        graph=graph,
        program=step.program,
        costs=step.costs,
        topology=step.topology,
        ledger=ledger,
        axes=tuple(jobs[0].axes_index),
    )


def compile_jobs(
    jobs: Sequence[JobToCompile], cluster: Cluster, *, fold: bool = True, detail: bool = True
) -> tuple[ExecutionGraph, tuple[JobTasks, ...]]:
    """Return the graph of one step of each job, and which part of it each job is.

    Jobs share links, and nothing else.

    Args:
        jobs: Each on devices of its own.
        cluster: On what they all run.
        fold: As for `compile_job`.
        detail: As for `compile_job`.

    Raises:
        StrategyError: A strategy does not fit its model or its devices, or memory behind the
            devices would be shared.
    """
    steps = [_step(job, cluster, _tiers(jobs)) for job in jobs]
    check_shared_tiers([step.topology for step in steps], _tiers(jobs))
    graph, _, _, classes = _graph(steps, fold=fold, detail=detail)
    return graph, tasks_of_jobs(graph, classes)


def _tiers(jobs: Sequence[JobToCompile]) -> tuple[str, ...]:
    """Return the memory behind the devices that any of the jobs uses."""
    used = [job.strategy.traffic.offload.tiers for job in jobs]
    return tuple(dict.fromkeys(tier for tiers in used for tier in tiers))


def _step(job: JobToCompile, cluster: Cluster, tiers: Sequence[str]) -> _Step:
    model, strategy, rates, software = job.model, job.strategy, job.rates, job.software
    sequence, global_batch = job.sequence, job.global_batch
    active = frozenset(axis for axis, degree in strategy.mesh.axes if degree > 1)
    check_fits(
        model,
        strategy,
        cluster,
        global_batch=global_batch,
        sequence=sequence,
        devices=None if job.devices is None else len(job.devices),
    )
    if misfits := offload_misfits(strategy, model, cluster.node):
        raise StrategyError(misfits)
    program = compile_model(model, strategy.tree, active)
    # Here an algorithm that cannot serve a group is the user's to know.
    rates = replace(rates, collectives=replace(rates.collectives, refuses=True))
    node, used = cluster.node, strategy.traffic.offload.tiers
    topology = MeshTopology(mesh=strategy.mesh, cluster=cluster, devices=job.devices)
    _check_place(topology, rates)
    devices = topology.device_of(np.arange(strategy.mesh.ranks))
    topology = replace(topology, behind=tier_links(node, tiers, devices))
    scale = _scale(strategy, program, sequence, global_batch)
    shapes = {axis: topology.group((axis,)) for axis in active}
    placement = Placement(
        inside={axis: shape.inside for axis, shape in shapes.items()},
        in_leaf={
            axis: shape.in_leaf for axis, shape in shapes.items() if shape.in_leaf is not None
        },
        stride=topology.strides(),
        filled=topology.filled,
    )
    costs = tuple(block_costs(p, scale, placement, rates, software) for p in program.programs)
    state = optimizer_state_bytes(job.optimizer)
    moves = movement_of(
        strategy,
        software,
        tiers_of(node, used, devices),
        memory_bytes_per_s=rates.memory_bytes_per_s,
        update_traffic_bytes=lambda elements: float(
            update_traffic_bytes(np.array(elements), state, software)
        ),
    )
    storages = tuple(block_storage(p, scale, software, state) for p in program.programs)
    return _Step(
        program=program,
        strategy=strategy,
        topology=topology,
        costs=costs,
        storages=storages,
        rates=rates,
        software=software,
        moves=moves,
        input_bytes=float(scale.micro_batch[0]) * sequence * _TOKEN_BYTES,
        label=job.label,
    )


def _check_place(topology: MeshTopology, rates: Rates) -> None:
    """Refuse devices on which it matters where in a node they are, and that are spread over it."""
    if topology.devices is None or not rates.collectives.looks_at_any():
        return
    ranks, width = np.arange(topology.mesh.ranks), topology.cluster.domain_devices
    whole = (topology.devices % width == ranks % width).all()
    if (
        not whole
        or (topology.devices // width != topology.devices[ranks // width * width] // width).any()
    ):
        raise StrategyError(
            {
                "place": "devices that are parts of nodes; expected whole nodes, as collectives by "
                "algorithm and the links inside a node go by which devices of it a job has"
            }
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """All that one training step is made of, before it becomes tasks."""

    program: ModelProgram
    strategy: Strategy
    topology: MeshTopology
    costs: tuple[BlockCosts, ...]
    storages: tuple[Storage, ...]
    rates: Rates
    software: Software
    moves: Movement
    input_bytes: float  # of one micro-batch on one rank
    label: str = ""

    @property
    def boundary_bytes(self) -> float:
        """What a stage hands to the next for one micro-batch. [B]"""
        return max(float(costs.boundary_bytes[0]) for costs in self.costs)


def _graph(
    steps: Sequence[_Step], *, fold: bool, detail: bool
) -> tuple[ExecutionGraph, MemoryLedger, list[RanksOfJob], list[int]]:
    """Return the graph of one step of each job, its memory, and each job's ranks and classes."""
    names, items = Names(), Items()
    programs: list[StageProgram] = []
    holdings: list[tuple[Holding, ...]] = []
    jobs: list[RanksOfJob] = []
    for step in steps:
        own, held, ranks = _stages_and_ranks(step, names, items, detail=detail)
        programs += [program.behind(len(programs)) for program in own]
        holdings += held
        jobs.append(ranks)
    classes, links = rank_classes(jobs, fold=fold)
    # Of one calibration: neither job nor device makes a difference to them.
    (slowdown,) = {
        (step.rates.overlap_compute_rate, step.rates.overlap_communication_rate) for step in steps
    }
    pipelines = [len(job.residents) for job in jobs]
    graph = execution_graph(
        programs,
        classes,
        links=links,
        names=tuple(names.index),
        compute_rate_while_communicating=slowdown[0],
        communication_rate_while_computing=slowdown[1],
        pipelines=pipelines,
    )
    of_stage = np.array([len(stage.ranks) for stage in classes])
    ledger = MemoryLedger(
        items=tuple(items.index),
        stages=tuple(
            StageLedger(pieces=program.pieces, holdings=held)
            for program, held in zip(programs, holdings, strict=True)
        ),
        stage_of_class=np.repeat(np.arange(len(classes)), of_stage),
    )
    of_job = np.add.reduceat(of_stage, np.cumsum([0, *pipelines[:-1]])).tolist()
    return graph, ledger, jobs, of_job


def _stages_and_ranks(
    step: _Step, names: Names, items: Items, *, detail: bool
) -> tuple[list[StageProgram], list[tuple[Holding, ...]], RanksOfJob]:
    axes_index: dict[tuple[str, ...], int] = {}
    # Orders are long too: what is certainly too much is refused before they are written.
    _check_count(step, 2 * len(step.program.instances))
    parts = _parts(step, names, items, axes_index, detail=detail)
    programs, holdings = _stages(step, parts, names, items, axes_index)
    ranks = RanksOfJob(
        topology=step.topology,
        axes_index=axes_index,
        residents=[resident_bytes(held, items) for held in holdings],
        boundary_bytes=step.boundary_bytes,
        rates=step.rates,
        mirrored=step.strategy.schedule.placed(len(programs)).copies > 1,
        label=step.label,
    )
    return _played_alone(programs, step, axes_index), holdings, ranks


def _played_alone(
    programs: list[StageProgram], step: _Step, axes_index: dict[tuple[str, ...], int]
) -> list[StageProgram]:
    """Return programs whose tasks have the work of when no other uses their links.

    Closed forms reckon with all groups at once; the executor shares links by itself.
    """
    uses = step.topology.links()
    if all(use.ranks_per_link <= 1 for use in uses):
        return programs
    groups = _groups_of_axes(step.topology, axes_index)
    rates = rank_rates(step.rates.links)
    result = []
    for program in programs:
        tasks = program.tasks.copy()
        tasks["work_s"] = alone_s(tasks, uses, groups, rates)
        result.append(replace(program, tasks=tasks))
    return result


def _groups_of_axes(
    topology: MeshTopology, axes_index: dict[tuple[str, ...], int]
) -> dict[int, NDArray[np.int64]]:
    return {number: topology.mesh.groups(axes) for axes, number in axes_index.items()}


def _parts(
    step: _Step,
    names: Names,
    items: Items,
    axes_index: dict[tuple[str, ...], int],
    *,
    detail: bool,
) -> tuple[BlockParts, ...]:
    """Return tasks and storage of every block program."""
    chosen, habit = step.strategy.overlap_tensor, step.software.overlap_tensor
    overlap = habit if chosen is None else chosen
    pipelining = Pipelining(
        tensor_exposed_share=step.rates.tensor_exposed_share if overlap else 1.0,
        context_exposed_share=0.0,
        in_line=step.moves.in_line,
    )
    split = _splits_backward(step.strategy)
    parts = []
    for costs, storage in zip(step.costs, step.storages, strict=True):
        tasks = block_tasks(costs, pipelining, names, axes_index, items=items, split=split)
        if not detail:
            tasks = tasks.changed(merged)
        parts.append(BlockParts(tasks=tasks, storage=storage, name=costs.program.block))
    return tuple(parts)


def _stages(
    step: _Step,
    parts: Sequence[BlockParts],
    names: Names,
    items: Items,
    axes_index: dict[tuple[str, ...], int],
) -> tuple[list[StageProgram], list[tuple[Holding, ...]]]:
    """Return the program of each stage and what it holds for the whole step."""
    strategy, software = step.strategy, step.software
    context = ChunkContext(
        rates=step.rates,
        group=step.topology.group,
        name=names,
        axes=lambda axes: axes_index.setdefault(axes, len(axes_index)),
        moves=step.moves,
        items=items,
    )
    stages, schedule = strategy.mesh.degree("pp"), strategy.schedule
    chunks = cut_chunks(step.program, stages, schedule)
    transfer = _transfer(names)
    _check_size(step, parts)
    tables: dict[tuple[int, ...], ChunkTables] = {}
    placement, orders = schedule.placed(stages), schedule.orders(stages)
    split = _splits_backward(strategy)
    pairs = PairedTables()
    programs, holdings, waiting = [], [], []
    layers = strategy.traffic.offload.layers
    plain = len(parts)
    parts = [*parts, *_stored(step, parts)] if layers else parts
    for stage in range(stages):
        own = [chunks[placement.model_chunk(stage, chunk)] for chunk in range(placement.chunks)]
        stored = stored_layers(step.program.model, own, layers) if layers else frozenset()
        keys = [
            tuple(step.program.instances[i] + (plain if i in stored else 0) for i in chunk)
            for chunk in own
        ]
        for key in keys:
            if key not in tables:
                tables[key] = ChunkTables([parts[i] for i in key], context, split=split)
        held = [[parts[index] for index in key] for key in keys]
        blocks = [block for chunk in held for block in chunk]
        programs.append(
            stage_program(
                orders[stage],
                [tables[key] for key in keys],
                held,
                context,
                _update(step, blocks),
                stage=stage,
                placement=placement,
                transfer=transfer,
                blocking_transfers=stages > 1 and not step.moves.overlap_pipeline,
                pairs=pairs,
            )
        )
        holdings.append(stage_holdings(blocks, step.moves, software, stages, items))
        waiting.append(waiting_bytes(step.moves, held, orders[stage]))
    check_capacity(step.topology, waiting)
    return programs, holdings


def _stored(step: _Step, parts: Sequence[BlockParts]) -> list[BlockParts]:
    """Return the blocks as they are where their activations wait outside of the device."""
    return [
        replace(part, stored_bytes=kept_bytes(costs))
        for part, costs in zip(parts, step.costs, strict=True)
    ]


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
    node = step.topology.cluster.node
    read_s = step.input_bytes * node.devices / node.host.storage_read_bytes_per_s
    return Update(
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
