"""Compiles model, strategy and cluster to an execution graph; lists the passes in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Integers
from wattree.compiler.folding.arrays import execution_graph
from wattree.compiler.folding.rank_classes import RanksOfJob, rank_classes
from wattree.compiler.folding.stage_classes import StageClasses
from wattree.compiler.folding.task_instances import TaskInstances
from wattree.compiler.folding.turns import Turns, turns_of
from wattree.compiler.tasks.ledger import Items, MemoryLedger, StageLedger
from wattree.compiler.tasks.stage_program import StageProgram
from wattree.compiler.tasks.step_tasks import (
    BuiltStage,
    orders_of,
    stages_and_ranks,
    with_levels,
)
from wattree.compiler.tasks.table import Names
from wattree.compiler.tasks.tier_use import TierTraffic, tier_traffic
from wattree.cost.loading import Loader
from wattree.errors import StrategyError
from wattree.graph import ExecutionGraph, JobTasks, tasks_of_jobs
from wattree.hardware import Cluster
from wattree.lowering.block import ModelProgram
from wattree.lowering.colocation import SharedWork
from wattree.lowering.costs import BlockCosts
from wattree.lowering.loading import Loading
from wattree.lowering.offload import check_shared_tiers
from wattree.lowering.placed import PlacedJob
from wattree.lowering.step import LoweredJob, LoweredStep, steps_of
from wattree.lowering.topology import MeshTopology
from wattree.strategy import Strategy
from wattree.strategy.schedules import Shortened


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPart:
    """The work of the ranks of one mesh.

    Attributes:
        strategy: For these ranks.
        costs: Costs of each program on the first kind of rank, by level, the busiest first.
        instances: Numbers of the programs of the blocks that they run.
        topology: The mesh on the cluster.
        axes: Sets of mesh axes that collectives run over.
    """

    strategy: Strategy
    program: ModelProgram
    costs: tuple[BlockCosts, ...]
    instances: tuple[int, ...]
    topology: MeshTopology
    axes: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """The result of compiling a job.

    Attributes:
        parts: What the ranks of each mesh do.
        ledger: What the memory of the graph's tasks and rank classes is made of.
        class_pools: Pool of each rank class's devices, `(C,)`.
        class_parts: Which of the parts each rank class is of, `(C,)`.
        loading: What loading data is to the ranks of each pool; empty where nothing is known.
        shared: What the device is to one of several processes; None where one has it.
        tiers: What the step does with each memory behind the devices that it uses.
        turns: Those that were left out; None if none were.
    """

    graph: ExecutionGraph
    parts: tuple[CompiledPart, ...]
    ledger: MemoryLedger
    class_pools: Integers
    class_parts: Integers
    loading: tuple[Loading, ...] = ()
    shared: SharedWork | None = None
    tiers: tuple[TierTraffic, ...] = ()
    turns: Turns | None = None

    @property
    def program(self) -> ModelProgram:
        """Block programs of a strategy of one mesh."""
        return self._only.program

    @property
    def costs(self) -> tuple[BlockCosts, ...]:
        """Costs of each `program`, for a strategy of one mesh."""
        return self._only.costs

    @property
    def topology(self) -> MeshTopology:
        """The only mesh on the cluster."""
        return self._only.topology

    @property
    def _only(self) -> CompiledPart:
        (part,) = self.parts
        return part


def compile_job(
    job: PlacedJob,
    cluster: Cluster,
    *,
    fold: bool = True,
    detail: bool = True,
    longer_than: int | None = None,
) -> Compilation:
    """Return the execution graph of one training step.

    Args:
        cluster: On what; its devices beyond the mesh stay idle.
        fold: One class for ranks that do the same; otherwise every rank is executed.
        detail: A task per operator; otherwise runs of undisturbed compute are merged, which
            changes no time.
        longer_than: Leave out what the schedule repeats in turns of more micro-batches than so
            many, if it does it often; for a strategy of one mesh.

    Raises:
        StrategyError: The strategy fits neither the model nor the cluster; every misfit listed.
    """
    steps = steps_of(job, cluster, _tiers([job], cluster), job.loader)
    made = _graph([steps], fold=fold, detail=detail, longer_than=longer_than)
    first = steps[0]
    return Compilation(
        graph=made.graph,
        parts=tuple(
            _part(each.of_kind[0], ranks) for each, ranks in zip(steps, made.ranks, strict=True)
        ),
        ledger=made.ledger,
        class_pools=made.class_pools,
        class_parts=np.repeat(np.arange(len(steps)), made.part_classes),
        loading=first.loading,
        shared=first.of_kind[0].shared if len(steps) == 1 else None,
        tiers=tier_traffic(first, made.built) if len(steps) == 1 else (),
        turns=made.turns,
    )


def _part(step: LoweredStep, ranks: RanksOfJob) -> CompiledPart:
    numbers, own = step.topology.mesh.stage_numbers, step.chunks
    if len(numbers) < step.topology.mesh.pipeline:  # then each stage has one chunk
        own = own[numbers.start : numbers.stop]
    return CompiledPart(
        strategy=step.strategy,
        program=step.program,
        costs=step.costs,
        instances=tuple(step.program.instances[number] for chunk in own for number in chunk),
        topology=step.topology,
        axes=tuple(ranks.axes_index),
    )


def compile_jobs(
    jobs: Sequence[PlacedJob], cluster: Cluster, *, fold: bool = True
) -> tuple[ExecutionGraph, tuple[JobTasks, ...]]:
    """Return the graph of one step of each job, and the part of each job in it.

    Jobs share links, and nothing else.

    Args:
        jobs: Each on devices of its own.
        fold: As for `compile_job`.

    Raises:
        StrategyError: A strategy does not fit its model or its devices, or memory behind the
            devices would be shared.
    """
    if cluster.is_mixed and len(jobs) > 1:
        raise StrategyError(
            {
                "neighbours": "found together with cluster.pools of different nodes; expected "
                "nodes of "
                "one kind"
            }
        )
    storage = _storage(jobs)
    tiers = _tiers(jobs, cluster)
    steps = [steps_of(job, cluster, tiers, storage) for job in jobs]
    used = {tier for job in jobs for tier in job.strategy.traffic.offload.tiers}
    check_shared_tiers([part.topology for parts in steps for part in parts], sorted(used))
    made = _graph(steps, fold=fold, detail=True)
    first = np.cumsum([0, *(len(parts) for parts in steps[:-1])])
    return made.graph, tasks_of_jobs(made.graph, np.add.reduceat(made.part_classes, first).tolist())


def _tiers(jobs: Sequence[PlacedJob], cluster: Cluster) -> tuple[str, ...]:
    """Return the memory behind the devices that any job copies to or from."""
    used = dict.fromkeys(t for job in jobs for t in job.strategy.traffic.offload.tiers)
    if used and not cluster.is_mixed and (cxl := cluster.node.cxl) and cxl.is_accessed_in_place:
        used.pop("cxl", None)
    return tuple(used)


def _storage(jobs: Sequence[PlacedJob]) -> Loader | None:
    """Return a loader that reads the storage shared by all jobs; None if no job reads any.

    Raises:
        StrategyError: They say different things of it.
    """
    loaders = [job.loader for job in jobs if job.loader is not None]
    storages = {(loader.storage_bytes_per_s, loader.storage_shared) for loader in loaders}
    if len(storages) > 1:
        raise StrategyError(
            {
                "data.loader.storage": "found jobs that say different things of the storage they "
                "share; expected the same bandwidth and per in all of them"
            }
        )
    return loaders[0] if loaders else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """The graph of one step of each job, its memory, and the ranks and classes of each mesh."""

    graph: ExecutionGraph
    ledger: MemoryLedger
    ranks: list[RanksOfJob]
    built: list[list[BuiltStage]]
    part_classes: list[int]
    class_pools: Integers
    turns: Turns | None


def _graph(
    jobs: Sequence[Sequence[LoweredJob]],
    *,
    fold: bool,
    detail: bool,
    longer_than: int | None = None,
) -> _Made:
    """Return the graph of one step of each job, with one part per mesh."""
    names, items = Names(), Items()
    shorter: Shortened | None = None
    programs: list[StageProgram] = []
    built: list[list[BuiltStage]] = []
    all_ranks: list[RanksOfJob] = []
    pipelines = []
    for parts in jobs:
        before = len(programs)
        for steps in parts:
            orders, shorter = orders_of(steps.of_kind[0], longer_than)
            own, ranks = stages_and_ranks(steps, names, items, detail=detail, orders=orders)
            programs += [with_levels(levels).behind(before) for levels in own]
            built += own
            all_ranks.append(ranks)
        pipelines.append(len(programs) - before)
    classes, links = rank_classes(all_ranks, fold=fold)
    # Of one calibration: neither job nor device makes a difference to them.
    (slowdown,) = {
        (each.overlap_compute_rate, each.overlap_communication_rate)
        for parts in jobs
        for steps in parts
        for each in steps.rates
    }
    tasks = TaskInstances(programs, classes)
    graph = execution_graph(
        tasks,
        links=links,
        names=tuple(names.index),
        slowdown=slowdown,
        pipelines=pipelines,
    )
    of_stage = np.array([len(stage.ranks) for stage in classes])
    stages = [len(ranks.static_memory) for ranks in all_ranks]
    return _Made(
        graph=graph,
        ledger=_ledger(items, built, classes),
        ranks=all_ranks,
        built=built,
        part_classes=np.add.reduceat(of_stage, np.cumsum([0, *stages[:-1]])).tolist(),
        class_pools=np.concatenate([stage.pool for stage in classes if stage.pool is not None]),
        turns=None if shorter is None else turns_of(tasks, shorter),
    )


def _ledger(
    items: Items, built: Sequence[Sequence[BuiltStage]], classes: Sequence[StageClasses]
) -> MemoryLedger:
    """Return what the memory of all stages is made of."""
    first = np.cumsum([0, *(len(levels) for levels in built)])
    return MemoryLedger(
        items=tuple(items.index),
        stages=tuple(
            StageLedger(pieces=executed.program.pieces, holdings=executed.holdings)
            for levels in built
            for executed in levels
        ),
        stage_of_class=np.concatenate(
            [first[number] + stage.level for number, stage in enumerate(classes)]
        ),
    )
