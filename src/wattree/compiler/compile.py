"""Model, strategy, cluster → execution graph: the passes in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.arrays import execution_graph
from wattree.compiler.block import ModelProgram, compile_model
from wattree.compiler.block_tasks import Pipelining, block_tasks
from wattree.compiler.chunk import BlockParts, ChunkContext
from wattree.compiler.chunk_tables import ChunkTables
from wattree.compiler.evaluate import BlockCosts, GroupShapes, Placement, block_costs
from wattree.compiler.fits import check_fits, check_ring
from wattree.compiler.kinds import RankKind, RankKinds, RankPlacement, axes_sets, rank_kinds
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
from wattree.compiler.token_load import RankLevels, rank_levels
from wattree.compiler.topology import LinkUse, MeshTopology
from wattree.cost import GroupShape, Software
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
        costs: Costs of each program on the first kind of rank, by level, the busiest first.
        topology: The mesh on the cluster.
        ledger: What the memory of the graph's tasks and rank classes is made of.
        axes: Sets of mesh axes that collectives run over.
        class_pools: Pool of each rank class's devices, `(C,)`.
    """

    graph: ExecutionGraph
    program: ModelProgram
    costs: tuple[BlockCosts, ...]
    topology: MeshTopology
    ledger: MemoryLedger
    axes: tuple[tuple[str, ...], ...]
    class_pools: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobToCompile:
    """One of several jobs on a cluster. Arguments of `compile_job`, and a name.

    Attributes:
        label: What the names of its rank classes begin with.
    """

    model: ModelGraph
    strategy: Strategy
    rates: Rates | Sequence[Rates]
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
    rates: Rates | Sequence[Rates],
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
        rates: What its devices reach, by pool; of a single pool just that.
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
    steps = _steps(job, cluster, _tiers([job]))
    made = _graph([steps], fold=fold, detail=detail)
    step = steps.of_kind[0]
    return Compilation(
        graph=made.graph,
        program=step.program,
        costs=step.costs,
        topology=step.topology,
        ledger=made.ledger,
        axes=tuple(made.jobs[0].axes_index),
        class_pools=made.class_pools,
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
    if cluster.is_mixed and len(jobs) > 1:
        raise StrategyError(
            {
                "neighbours": "found beside cluster.pools of different nodes; expected nodes of "
                "one kind"
            }
        )
    steps = [_steps(job, cluster, _tiers(jobs)) for job in jobs]
    check_shared_tiers([each.topology for each in steps], _tiers(jobs))
    made = _graph(steps, fold=fold, detail=detail)
    return made.graph, tasks_of_jobs(made.graph, made.classes)


def _tiers(jobs: Sequence[JobToCompile]) -> tuple[str, ...]:
    """Return the memory behind the devices that any of the jobs uses."""
    used = [job.strategy.traffic.offload.tiers for job in jobs]
    return tuple(dict.fromkeys(tier for tiers in used for tier in tiers))


def _steps(job: JobToCompile, cluster: Cluster, tiers: Sequence[str]) -> _Steps:
    """Return what a job's step is made of on each kind of its ranks."""
    model, strategy, software = job.model, job.strategy, job.software
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
    if "cp" in active:
        check_ring(strategy.tree, software)
    # Here an algorithm that cannot serve a group is the user's to know.
    given = (job.rates,) if isinstance(job.rates, Rates) else job.rates
    by_pool = tuple(replace(r, collectives=replace(r.collectives, refuses=True)) for r in given)
    assert len(by_pool) == len(cluster.pools), "rates of every pool"
    topology = _topology(job, cluster, tiers)
    _check_place(topology, by_pool)
    program = compile_model(model, strategy.tree, active)
    load, dropless = strategy.expert_load, software.moe_dropless
    levels = rank_levels(load, program, strategy.mesh, dropless=dropless)
    if levels is not None and cluster.is_mixed:
        raise StrategyError(
            {
                "strategy.expert_imbalance": "found experts of unequal load beside cluster.pools "
                "of different nodes; expected nodes of one kind, or equal loads"
            }
        )
    scale = _scale(strategy, program, sequence, global_batch, levels)
    state = optimizer_state_bytes(job.optimizer)
    often = strategy.reduce_every_micro_batch
    storages = tuple(
        block_storage(p, scale, software, state, reduce_every_micro_batch=often)
        for p in program.programs
    )
    kinds = rank_kinds(topology, axes_sets(program, storages), [each.links for each in by_pool])
    devices = topology.device_of(np.arange(strategy.mesh.ranks))
    used = strategy.traffic.offload.tiers
    behind = tiers_of(cluster.node, used, devices) if used else {}
    steps = []
    for kind in kinds.kinds:
        rates, placement = by_pool[kind.pool], _placement(topology, kind, active)
        moves = movement_of(
            strategy,
            software,
            behind,
            memory_bytes_per_s=rates.memory_bytes_per_s,
            update_traffic_bytes=lambda elements: float(
                update_traffic_bytes(np.array(elements), state, software)
            ),
        )
        steps.append(
            _Step(
                program=program,
                strategy=strategy,
                topology=topology,
                kind=kind,
                costs=tuple(
                    block_costs(p, scale, placement, rates, software) for p in program.programs
                ),
                storages=storages,
                rates=rates,
                software=software,
                moves=moves,
                input_bytes=float(scale.micro_batch[0]) * sequence * _TOKEN_BYTES,
                levels=levels,
            )
        )
    return _Steps(of_kind=tuple(steps), kinds=kinds, rates=by_pool, label=job.label)


def _topology(job: JobToCompile, cluster: Cluster, tiers: Sequence[str]) -> MeshTopology:
    """Return the mesh on the cluster, with links to memory behind its devices."""
    topology = MeshTopology(mesh=job.strategy.mesh, cluster=cluster, devices=job.devices)
    given = {"place": job.devices is not None, "strategy.offload": bool(tiers)}
    if cluster.is_mixed and any(given.values()):
        reason = "found beside cluster.pools of different nodes; expected nodes of one kind"
        raise StrategyError({key: reason for key, is_given in given.items() if is_given})
    if misfits := offload_misfits(job.strategy, job.model, cluster.pools[0].node):
        raise StrategyError(misfits)
    if not tiers:
        return topology
    devices = topology.device_of(np.arange(job.strategy.mesh.ranks))
    return replace(topology, behind=tier_links(cluster.node, tiers, devices))


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
        stride=topology.strides(),
        filled=topology.filled,
    )


def _check_place(topology: MeshTopology, rates: Sequence[Rates]) -> None:
    """Refuse devices where it matters which of a scale-up domain a group has, and none can tell."""
    if not any(each.collectives.looks_at_any() for each in rates):
        return
    if not topology.has_even_domains:
        sizes = ", ".join(f"{p.domain_devices} of {p.node.name}" for p in topology.cluster.pools)
        raise StrategyError(
            {
                "cluster.pools": f"found scale-up domains of unequal size ({sizes}); expected "
                "equal ones where collectives has algorithms, or nodes have no switch inside"
            }
        )
    if topology.devices is None:
        return
    ranks, width = np.arange(topology.mesh.ranks), topology.cluster.domain_devices
    domain = topology.devices // width
    apart = domain != domain[ranks // width * width]
    if apart.any() or (topology.devices % width != ranks % width).any():
        raise StrategyError(
            {
                "place": "found parts of scale-up domains; expected whole ones where collectives "
                "has algorithms, or where nodes have no switch inside: it matters which devices"
            }
        )


def update_traffic_bytes(elements: Floats, state_bytes: float, software: Software) -> Floats:
    """Return the memory traffic of updating `elements` parameters. [B]"""
    return elements * (2 * (state_bytes + software.master_bytes) + _UPDATE_BYTES)


def _scale(
    strategy: Strategy,
    program: ModelProgram,
    sequence: int,
    global_batch: int,
    levels: RankLevels | None,
) -> Scale:
    replicas = strategy.mesh.size(program.batch_axes)
    micro_batch = global_batch / (strategy.schedule.micro_batches * replicas)
    count = 1 if levels is None else len(levels.load.tokens)
    return Scale(
        micro_batch=np.full(count, micro_batch),
        sequence=float(sequence),
        degrees={axis: np.array([float(degree)]) for axis, degree in strategy.mesh.axes},
        batch_axes=program.batch_axes,
        load=None if levels is None else levels.load,
    )


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
    moves: Movement
    input_bytes: float  # of one micro-batch on one rank
    levels: RankLevels | None

    @property
    def level_count(self) -> int:
        """How many kinds of ranks there are by the tokens of their experts."""
        return 1 if self.levels is None else len(self.levels.load.tokens)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """One job's step on each kind of its ranks, and its rates by pool."""

    of_kind: tuple[_Step, ...]
    kinds: RankKinds
    rates: tuple[Rates, ...]
    label: str

    @property
    def topology(self) -> MeshTopology:
        """The mesh on the cluster."""
        return self.of_kind[0].topology


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """The graph of one step of each job, its memory, and each job's ranks and rank classes."""

    graph: ExecutionGraph
    ledger: MemoryLedger
    jobs: list[RanksOfJob]
    classes: list[int]
    class_pools: NDArray[np.int64]


def _graph(all_steps: Sequence[_Steps], *, fold: bool, detail: bool) -> _Made:
    """Return the graph of one step of each job."""
    names, items = Names(), Items()
    programs: list[StageProgram] = []
    built: list[list[_Built]] = []
    jobs: list[RanksOfJob] = []
    for steps in all_steps:
        own, ranks = _stages_and_ranks(steps, names, items, detail=detail)
        programs += [_with_levels(levels).behind(len(programs)) for levels in own]
        built += own
        jobs.append(ranks)
    classes, links = rank_classes(jobs, fold=fold)
    # Of one calibration: neither job nor device makes a difference to them.
    (slowdown,) = {
        (each.overlap_compute_rate, each.overlap_communication_rate)
        for steps in all_steps
        for each in steps.rates
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
    first = np.cumsum([0, *(len(levels) for levels in built)])
    ledger = MemoryLedger(
        items=tuple(items.index),
        stages=tuple(
            StageLedger(pieces=played.program.pieces, holdings=played.holdings)
            for levels in built
            for played in levels
        ),
        stage_of_class=np.concatenate(
            [first[number] + stage.level for number, stage in enumerate(classes)]
        ),
    )
    return _Made(
        graph=graph,
        ledger=ledger,
        jobs=jobs,
        classes=np.add.reduceat(of_stage, np.cumsum([0, *pipelines[:-1]])).tolist(),
        class_pools=np.concatenate([stage.pool for stage in classes if stage.pool is not None]),
    )


def _stages_and_ranks(
    steps: _Steps, names: Names, items: Items, *, detail: bool
) -> tuple[list[list[_Built]], RanksOfJob]:
    """Return the stages of a job, each for every level or kind of ranks in it, and its ranks."""
    axes_index: dict[tuple[str, ...], int] = {}
    step, topology = steps.of_kind[0], steps.topology
    # Orders are long too: what is certainly too much is refused before they are written.
    _check_count(step, 2 * len(step.program.instances))
    count, uses = step.strategy.mesh.degree("pp"), topology.links()
    of_stage = [steps.kinds.of_stage(topology.stage_ranks(stage)) for stage in range(count)]
    found: list[list[_Built]] = [[] for _ in range(count)]
    for number, own in enumerate(steps.of_kind):
        stages = [stage for stage in range(count) if number in of_stage[stage]]
        for level in range(own.level_count):
            parts = _parts(own, names, items, axes_index, detail=detail, level=level)
            made = _stages(own, parts, names, items, axes_index, level=level, wanted=stages)
            for stage, built in made.items():
                found[stage].append(built)
    for own_levels, kinds in zip(found, of_stage, strict=True):
        for place, built in enumerate(own_levels):
            own = steps.of_kind[kinds[place]] if len(kinds) > 1 else steps.of_kind[kinds[0]]
            program = _played_alone(built.program, own, uses, axes_index)
            own_levels[place] = built._replace(program=program)
    levels = None if step.levels is None else step.levels.of_rank
    waiting = [
        {stage: played[level].waiting for stage, played in enumerate(found)}
        for level in range(step.level_count)
    ]
    check_capacity(topology, waiting, levels)
    ranks = RanksOfJob(
        topology=topology,
        axes_index=axes_index,
        # Whoever gets more tokens, or has another device, holds no more parameters.
        residents=[resident_bytes(played[0].holdings, items) for played in found],
        boundary_bytes=step.boundary_bytes,
        rates=steps.rates,
        kinds=steps.kinds,
        levels=levels,
        mirrored=step.strategy.schedule.placed(count).copies > 1,
        label=steps.label,
    )
    return found, ranks


def _with_levels(levels: Sequence[_Built]) -> StageProgram:
    """Return the program of a stage with the tasks that ranks of every level or kind play.

    They differ in figures alone, so tasks and edges are those of the first.
    """
    first, *others = (played.program for played in levels)
    for other in others:
        alike = len(other.tasks) == len(first.tasks) and np.array_equal(other.edges, first.edges)
        assert alike, "what a rank does depends on no figure"
    return replace(first, levels=tuple(other.tasks for other in others))


class _Built(NamedTuple):
    """A stage as ranks of one level or kind play it.

    Attributes:
        program: Its tasks.
        holdings: What they hold for the whole step.
        waiting: What they have in each memory behind the devices at most: tier → bytes. [B]
    """

    program: StageProgram
    holdings: tuple[Holding, ...]
    waiting: Mapping[str, float]


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
    step: _Step,
    names: Names,
    items: Items,
    axes_index: dict[tuple[str, ...], int],
    *,
    detail: bool,
    level: int,
) -> tuple[BlockParts, ...]:
    """Return tasks and storage of every block program, as ranks of `level` play them."""
    chosen, habit = step.strategy.overlap_tensor, step.software.overlap_tensor
    pipelining = Pipelining.of(
        step.rates,
        overlap_tensor=habit if chosen is None else chosen,
        pieces=step.strategy.tensor_pieces,
        in_line=step.moves.in_line,
    )
    split = _splits_backward(step.strategy)
    parts = []
    for costs, storage in zip(step.costs, step.storages, strict=True):
        tasks = block_tasks(costs, pipelining, names, axes_index, level, items=items, split=split)
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
    *,
    level: int,
    wanted: Sequence[int],
) -> dict[int, _Built]:
    """Return each stage that is wanted, as ranks of `level` play it."""
    strategy, software = step.strategy, step.software
    context = ChunkContext(
        rates=step.rates,
        group=step.group,
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
    found = {}
    layers = strategy.traffic.offload.layers
    plain = len(parts)
    parts = [*parts, *_stored(step, parts, level)] if layers else parts
    for stage in wanted:
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
        program = stage_program(
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
        found[stage] = _Built(
            program=program,
            holdings=stage_holdings(blocks, step.moves, software, stages, items),
            waiting=waiting_bytes(step.moves, held, orders[stage]),
        )
    return found


def _stored(step: _Step, parts: Sequence[BlockParts], level: int) -> list[BlockParts]:
    """Return the blocks as they are where their activations wait outside of the device."""
    return [
        replace(part, stored_bytes=kept_bytes(costs, level))
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
    node = step.topology.cluster.pools[step.kind.pool].node
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
