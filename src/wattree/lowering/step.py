"""A job laid on its cluster: programs, costs, storage and links, before any task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattree.cost import GroupShape, Software
from wattree.cost.expanded import ExpandedMemory
from wattree.cost.loading import Loader
from wattree.cost.rates import Rates
from wattree.cost.update import update_bytes_per_s, update_traffic_bytes
from wattree.errors import StrategyError
from wattree.graph import ModelGraph
from wattree.hardware import Cluster
from wattree.lowering.block import ModelProgram, compile_model
from wattree.lowering.changed import changed_model
from wattree.lowering.colocation import SharedWork, colocation_misfits
from wattree.lowering.costs import BlockCosts, block_costs
from wattree.lowering.dataflow import chunk_stages, with_received
from wattree.lowering.groups import GroupShapes, Placement
from wattree.lowering.layout import local_size
from wattree.lowering.legality import check_fits, check_ring
from wattree.lowering.loading import Loading, check_host_memory, loading_of, storage_links
from wattree.lowering.memory_tier_access import expanded_memory, reached_offload
from wattree.lowering.movement import Movement, movement_of
from wattree.lowering.offload import check_far_tables, offload_misfits
from wattree.lowering.owners import first_rank_levels, owner_levels
from wattree.lowering.passes.window import window_part_misfits
from wattree.lowering.program import Scale
from wattree.lowering.rank_kinds import RankKind, RankKinds, RankPlacement, axes_sets, rank_kinds
from wattree.lowering.setting import Setting
from wattree.lowering.stages import cut_chunks
from wattree.lowering.storage import (
    Storage,
    block_storage,
    optimizer_state_bytes,
)
from wattree.lowering.tiers import tier_links, tiers_of
from wattree.lowering.token_load import RankLevels, rank_levels
from wattree.lowering.topology import MeshTopology
from wattree.strategy import TIME_SLICED, Offload, Strategy

__all__ = ["LoweredJob", "LoweredStep", "PlacedJob", "steps_of"]

#: Bytes of one token id as loaders hand it to the device (int64).
_TOKEN_BYTES = 8.0

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedJob:
    """One job on its devices: all that its step is lowered from.

    Attributes:
        model: What to train.
        strategy: How.
        rates: What its devices reach, by pool; of a single pool just that.
        software: What its software does by default.
        optimizer: Name of the optimizer.
        sequence: Tokens per sample.
        global_batch: Samples per step.
        devices: Device of each rank; None puts rank r on device r.
        label: What the names of its rank classes begin with.
        loader: How its data is loaded; None where nothing is known of that.
        spilled: Share of what has no place of its own that lies in expanded memory.
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
    loader: Loader | None = None
    spilled: float = 0.0

    @classmethod
    def of(
        cls, setting: Setting, strategy: Strategy, *, label: str = "", spilled: float = 0.0
    ) -> PlacedJob:
        """Return the job of a setting under one strategy."""
        job = setting.job
        return cls(
            model=setting.model,
            strategy=strategy,
            rates=setting.pool_rates,
            software=setting.software,
            optimizer=job.optimizer,
            sequence=job.data.sequence_length,
            global_batch=job.data.global_batch,
            devices=None if job.devices is None else np.array(job.devices, dtype=np.int64),
            label=label,
            loader=job.data.loader,
            spilled=spilled,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredStep:
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
    state_bytes: float  # of the optimiser, for each parameter
    input_bytes: float  # of one micro-batch on one rank
    loading: Loading | None
    levels: RankLevels | None

    @property
    def level_count(self) -> int:
        """How many kinds of ranks there are by the tokens of their experts."""
        return 1 if self.levels is None else len(self.levels.load.tokens)

    @property
    def shared(self) -> SharedWork | None:
        """What the device is to one of several processes in a step; None where one has it."""
        found: SharedWork | None = None
        for number in self.program.instances:
            own = self.costs[number].shared
            if own is not None:
                found = own if found is None else found.plus(own)
        return None if found is None else found.times(float(self.strategy.schedule.micro_batches))

    @property
    def group(self) -> Callable[[tuple[str, ...]], GroupShape]:
        """How groups over axes look to these ranks."""
        if self.topology.cluster.is_mixed:
            return self.kind.shapes.__getitem__
        return self.topology.group


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredJob:
    """One job's step on each kind of its ranks, its rates and its loading by pool."""

    of_kind: tuple[LoweredStep, ...]
    kinds: RankKinds
    rates: tuple[Rates, ...]
    loading: tuple[Loading, ...]
    label: str

    @property
    def topology(self) -> MeshTopology:
        """The mesh on the cluster."""
        return self.of_kind[0].topology


def with_changes(job: PlacedJob) -> PlacedJob:
    """Return the job with the model that its strategy makes of its own.

    Raises:
        StrategyError: Layers cannot be what the strategy wants of them.
    """
    strategy = job.strategy
    degrees = dict(strategy.mesh.axes)
    model, tree = changed_model(job.model, strategy.tree, degrees)
    return (
        job
        if model is job.model
        else replace(job, model=model, strategy=replace(strategy, tree=tree))
    )


def with_processes(job: PlacedJob) -> PlacedJob:
    """Return the job of one process on each device, on what others of its device leave of it.

    Raises:
        StrategyError: The processes cannot share the batch evenly.
    """
    colocation = job.strategy.colocation
    if not colocation.is_several:
        return job
    count, in_turn = colocation.processes, colocation.sharing == TIME_SLICED
    given = (job.rates,) if isinstance(job.rates, Rates) else job.rates
    return replace(
        job,
        rates=tuple(rates.shared(count, in_turn=in_turn) for rates in given),
        global_batch=colocation.process_batch(job.global_batch),
        loader=None if job.loader is None else job.loader.shared(count),
    )


def steps_of(
    job: PlacedJob, cluster: Cluster, tiers: Sequence[str], storage: Loader | None = None
) -> LoweredJob:
    """Return what a job's step is made of on each kind of its ranks.

    Args:
        job: The job.
        cluster: On what.
        tiers: Memory behind the devices that it or jobs beside it use.
        storage: A loader whose storage it or jobs beside it read; None if none does.
    """
    if misfits := colocation_misfits(job.strategy, cluster):
        raise StrategyError(misfits)
    job = with_processes(with_changes(job))
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
    topology = _topology(job, cluster, tiers, storage)
    _check_place(topology, by_pool)
    program = compile_model(model, strategy.tree, active)
    if (count := strategy.mesh.degree("pp")) > 1:
        on_stage = chunk_stages(strategy.schedule.placed(count))
        program = with_received(program, cut_chunks(program, count, strategy.schedule), on_stage)
    parts = [part for each in program.programs for part in each.window_parts]
    if beyond := window_part_misfits(parts, dict(strategy.mesh.axes)):
        raise StrategyError(beyond)
    if strategy.traffic.offload.tables is not None:
        check_far_tables(program, software, strategy.traffic)
    levels = _uneven(job, program, cluster)
    share = strategy.schedule.micro_batches * strategy.mesh.size(program.batch_axes)
    scale = program.scale(
        {axis: np.array([float(degree)]) for axis, degree in strategy.mesh.axes},
        np.full(1 if levels is None else len(levels.load.tokens), global_batch / share),
        sequence=sequence,
        load=None if levels is None else levels.load,
    )
    if strategy.single_process:
        scale = replace(scale, launches=float(strategy.mesh.ranks))
    state = optimizer_state_bytes(job.optimizer)
    often = strategy.traffic.reduce_every_micro_batch
    storages = tuple(
        block_storage(
            p,
            scale,
            software,
            state,
            reduce_every_micro_batch=often,
            samples=float(global_batch),
            offload=strategy.traffic.offload,
        )
        for p in program.programs
    )
    kinds = rank_kinds(topology, axes_sets(program, storages), [each.links for each in by_pool])
    devices = topology.device_of(np.arange(strategy.mesh.ranks))
    copied, reached = strategy.traffic.offload, Offload()
    if copied.tiers:  # then nodes are of one kind
        copied, reached = reached_offload(copied, cluster.node)
    behind = tiers_of(cluster.node, copied.tiers, devices) if copied.tiers else {}
    loading = _loading(job, topology, samples=float(scale.micro_batch[0]))
    steps = []
    for kind in kinds.kinds:
        rates, placement = by_pool[kind.pool], _placement(topology, kind, active)
        if reached.tiers:
            rates = replace(rates, expanded=_expanded(job, cluster, reached))
        moves = movement_of(
            strategy,
            software,
            behind,
            memory_bytes_per_s=float(update_bytes_per_s(state, software, rates)),
            reached=(reached, float(update_bytes_per_s(state, software, rates, far=True))),
            update_traffic_bytes=lambda elements: float(
                update_traffic_bytes(
                    np.array(elements), state, software, processes=strategy.colocation.processes
                )
            ),
            # Only one process scatters what its devices are given.
            sample_bytes=given_bytes(model, scale, rates.element_bytes)
            if strategy.single_process
            else 0.0,
        )
        steps.append(
            LoweredStep(
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
                state_bytes=state,
                input_bytes=_input_bytes(model, scale),
                loading=loading[kind.pool] if loading else None,
                levels=levels,
            )
        )
    return LoweredJob(
        of_kind=tuple(steps), kinds=kinds, rates=by_pool, loading=loading, label=job.label
    )


def _loading(job: PlacedJob, topology: MeshTopology, *, samples: float) -> tuple[Loading, ...]:
    """Return what loading samples is to the ranks of each pool; nothing without a loader."""
    if job.loader is None:
        return ()
    found = loading_of(
        job.loader,
        topology,
        job.strategy.schedule,
        samples,
        broadcasts=job.software.broadcasts_data,
    )
    check_host_memory(found)
    return found


def _expanded(job: PlacedJob, cluster: Cluster, reached: Offload) -> ExpandedMemory | None:
    """Return the expanded memory of a device, with what lies there."""
    layers = max(job.model.layers, 1) / job.strategy.mesh.degree("pp")
    return expanded_memory(
        reached,
        cluster.node,
        devices=cluster.devices,
        spilled=job.spilled,
        stage_layers=np.asarray(layers),
    )


def _uneven(job: PlacedJob, program: ModelProgram, cluster: Cluster) -> RankLevels | None:
    """Return how unequally the ranks are loaded; None where all do the same.

    Raises:
        StrategyError: More than one thing makes them unequal, or their nodes differ besides.
    """
    strategy = job.strategy
    load, dropless = strategy.expert_load, job.software.moe_dropless
    levels = rank_levels(load, program, strategy.mesh, dropless=dropless)
    owners = owner_levels(program, strategy.mesh)
    if strategy.single_process:
        if misfit := single_process_misfits(strategy, cluster):
            raise StrategyError(misfit)
        owners = first_rank_levels(("dp",), strategy.mesh) if strategy.mesh.ranks > 1 else None
    if levels is not None and owners is not None:
        raise StrategyError(
            {
                "strategy.expert_imbalance": "found beside operators that one rank has whole; "
                "expected one or the other: which ranks are busiest is not added up"
            }
        )
    levels = levels or owners
    if levels is not None and cluster.is_mixed:
        what = "experts" if owners is None else "ranks"
        key = "strategy.expert_imbalance" if owners is None else "strategy.tree"
        raise StrategyError(
            {
                key: f"found {what} of unequal load beside cluster.pools of different nodes; "
                "expected nodes of one kind, or equal loads"
            }
        )
    return levels


def given_bytes(model: ModelGraph, scale: Scale, element_bytes: float) -> float:
    """Return the samples of a micro-batch of all replicas: what blocks read that none makes. [B]

    What does not grow with the batch (tables of positions, masks) stays where it is.
    """
    made = {
        f"{instance.path}.{output.tensor}"
        for instance in model.instances
        for operator in model.blocks[instance.block].operators
        for output in operator.outputs
    }
    total, seen = 0.0, set(made)
    for name, block in model.blocks.items():
        given = set(block.given) - made
        given -= {output.tensor for operator in block.operators for output in operator.outputs}
        for operator in block.operators:
            for operand in operator.inputs:
                is_sample = any(operator.dim(dim).extent.batch for dim in operand.dims)
                key = f"{name}.{operand.tensor}"
                if operand.tensor in given and key not in seen and is_sample:
                    seen.add(key)
                    elements = scale.value(local_size(operator, operand, {}))[0]
                    total += float(elements) * (operand.element_bytes or element_bytes)
    return total


def _input_bytes(model: ModelGraph, scale: Scale) -> float:
    """Return the token ids of a micro-batch of one replica, for which the step waits. [B]

    Samples of other models are large, and loaders read and copy them ahead: the job says how.
    """
    if not model.own_family:
        return 0.0
    return float(scale.micro_batch[0]) * scale.sequence * _TOKEN_BYTES


def single_process_misfits(strategy: Strategy, cluster: Cluster) -> dict[str, str]:
    """Return path → why one process cannot drive the ranks."""
    found = {
        f"strategy.mesh.{axis}": f"found {degree} with single_process, which knows replicas only; "
        "use dp"
        for axis, degree in strategy.mesh.axes
        if axis != "dp" and degree > 1
    }
    devices = cluster.pools[0].node.devices
    if strategy.mesh.ranks > devices:
        found["strategy.mesh.dp"] = (
            f"found {strategy.mesh.ranks} with single_process, but a process drives the devices of "
            f"one node, {devices} of {cluster.pools[0].node.name}; use ddp"
        )
    if strategy.schedule.micro_batches > 1:
        found["strategy.schedule.micro_batches"] = (
            f"found {strategy.schedule.micro_batches} with single_process, which sends the whole "
            "batch at once; use 1"
        )
    return found


def _topology(
    job: PlacedJob, cluster: Cluster, tiers: Sequence[str], storage: Loader | None
) -> MeshTopology:
    """Return the mesh on the cluster, with links to memory behind its devices and to storage."""
    topology = MeshTopology(mesh=job.strategy.mesh, cluster=cluster, devices=job.devices)
    given = {"place": job.devices is not None, "strategy.offload": bool(tiers)}
    if cluster.is_mixed and any(given.values()):
        reason = "found beside cluster.pools of different nodes; expected nodes of one kind"
        raise StrategyError({key: reason for key, is_given in given.items() if is_given})
    if misfits := offload_misfits(job.strategy, job.model, cluster.pools[0].node):
        raise StrategyError(misfits)
    if cluster.is_mixed or (not tiers and storage is None):
        return topology
    devices = topology.device_of(np.arange(job.strategy.mesh.ranks))
    if storage is None:
        return replace(topology, behind=tier_links(cluster.node, tiers, devices))
    used = (*tiers, *(() if "host" in tiers else ("host",)))
    behind = tier_links(cluster.node, used, devices)
    return replace(topology, behind=(*behind, *storage_links(storage, cluster, devices)))


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
