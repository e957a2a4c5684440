"""A job laid on its cluster: programs, costs, storage and links, before any task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattree.cost import GroupShape, Software
from wattree.cost.expanded import ExpandedMemory
from wattree.cost.loading import Loader
from wattree.cost.rates import Rates
from wattree.cost.update import update_bytes_per_s, update_traffic_bytes
from wattree.errors import StrategyError
from wattree.hardware import Cluster
from wattree.lowering.block import ModelProgram, compile_model
from wattree.lowering.colocation import SharedWork, colocation_misfits
from wattree.lowering.costs import BlockCosting, BlockCosts
from wattree.lowering.dataflow import chunk_stages, with_boundary_copies
from wattree.lowering.groups import GroupShapes, Placement
from wattree.lowering.legality import check_fits, check_ring
from wattree.lowering.loading import Loading, check_host_memory, loading_of, storage_links
from wattree.lowering.memory_tier_access import expanded_memory, split_offload
from wattree.lowering.movement import Movement, movement_of
from wattree.lowering.offload import check_tier2_tables, offload_misfits
from wattree.lowering.passes.window import window_part_misfits
from wattree.lowering.placed import PlacedJob, with_changes, with_processes
from wattree.lowering.program import Scale
from wattree.lowering.rank_kinds import RankKind, RankKinds, RankPlacement, axes_sets, rank_kinds
from wattree.lowering.sample_bytes import given_bytes, input_bytes
from wattree.lowering.stages import cut_chunks
from wattree.lowering.storage import Storage, block_storage, optimizer_state_bytes
from wattree.lowering.tiers import Tier, tier_links, tiers_of
from wattree.lowering.token_load import RankLevels
from wattree.lowering.topology import MeshTopology
from wattree.lowering.uneven import uneven_levels
from wattree.strategy import AxisRole, Offload, Strategy


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
    state_bytes: float  # of the optimizer, for each parameter
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
        if self.topology.cluster.is_mixed or self.topology.devices is not None:
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
    job = _checked(job, cluster)
    strategy, software = job.strategy, job.software
    # Here an algorithm that cannot serve a group is the user's to know.
    given = (job.rates,) if isinstance(job.rates, Rates) else job.rates
    by_pool = tuple(replace(r, collectives=replace(r.collectives, refuses=True)) for r in given)
    assert len(by_pool) == len(cluster.pools), "rates of every pool"
    topology = _topology(job, cluster, tiers, storage)
    _check_place(topology, by_pool)
    active = _active(strategy)
    program = _program(job, active)
    levels = uneven_levels(job, program, cluster)
    scale = _scale(job, program, levels)
    storages = _storages(job, program, scale)
    sets, links = axes_sets(program, storages), [each.links for each in by_pool]
    kinds = rank_kinds(topology, sets, links, leveled=levels is not None)
    copied, tier2_offload = strategy.traffic.offload, Offload()
    if copied.tiers:  # then nodes are of one kind
        copied, tier2_offload = split_offload(copied, cluster.node)
    devices = topology.device_of(np.arange(strategy.mesh.ranks))
    behind = tiers_of(cluster.node, copied.tiers, devices) if copied.tiers else {}
    loading = _loading(job, topology, samples=float(scale.micro_batch[0]))
    steps = []
    for kind in kinds.kinds:
        rates, placement = by_pool[kind.pool], _placement(topology, kind, active)
        if tier2_offload.tiers:
            rates = replace(rates, expanded=_expanded(job, cluster, tier2_offload))
        costing = BlockCosting(scale, placement, rates, software)
        steps.append(
            LoweredStep(
                program=program,
                strategy=strategy,
                topology=topology,
                kind=kind,
                costs=tuple(map(costing.of, program.programs)),
                storages=storages,
                rates=rates,
                software=software,
                moves=_moves(job, scale, rates, behind, tier2_offload),
                state_bytes=optimizer_state_bytes(job.optimizer),
                input_bytes=input_bytes(job.model, scale),
                loading=loading[kind.pool] if loading else None,
                levels=levels,
            )
        )
    return LoweredJob(
        of_kind=tuple(steps), kinds=kinds, rates=by_pool, loading=loading, label=job.label
    )


def _active(strategy: Strategy) -> frozenset[str]:
    """Return the axes of more than one rank."""
    return frozenset(axis for axis, degree in strategy.mesh.axes if degree > 1)


def _checked(job: PlacedJob, cluster: Cluster) -> PlacedJob:
    """Return the job of one process on each device and of the model that it trains, if it fits.

    Raises:
        StrategyError: It does not fit.
    """
    if misfits := colocation_misfits(job.strategy, cluster):
        raise StrategyError(misfits)
    job = with_processes(with_changes(job))
    check_fits(
        job.model,
        job.strategy,
        cluster,
        global_batch=job.global_batch,
        sequence=job.sequence,
        devices=None if job.devices is None else len(job.devices),
    )
    if job.strategy.degrees[AxisRole.CONTEXT] > 1:
        check_ring(job.strategy.tree, job.software)
    return job


def _program(job: PlacedJob, active: frozenset[str]) -> ModelProgram:
    """Return the programs of the job's model.

    Raises:
        StrategyError: Parts are too small for windows, or tables have no room behind the devices.
    """
    model, strategy = job.model, job.strategy
    program = compile_model(model, strategy.tree, active)
    if (count := strategy.mesh.stages) > 1:
        on_stage = chunk_stages(strategy.schedule.placed(count))
        program = with_boundary_copies(
            program, cut_chunks(program, count, strategy.schedule), on_stage
        )
    parts = [part for each in program.programs for part in each.window_parts]
    if beyond := window_part_misfits(parts, dict(strategy.mesh.axes)):
        raise StrategyError(beyond)
    if strategy.traffic.offload.tables is not None:
        check_tier2_tables(program, job.software, strategy.traffic)
    return program


def _scale(job: PlacedJob, program: ModelProgram, levels: RankLevels | None) -> Scale:
    """Return the values of the program's symbols, by level of ranks."""
    strategy = job.strategy
    share = strategy.schedule.micro_batches * strategy.mesh.size(program.batch_axes)
    scale = program.scale(
        {axis: np.array([float(degree)]) for axis, degree in strategy.mesh.axes},
        np.full(1 if levels is None else len(levels.load.tokens), job.global_batch / share),
        sequence=job.sequence,
        load=None if levels is None else levels.load,
    )
    if strategy.single_process:
        scale = replace(scale, launches=float(strategy.mesh.ranks))
    return scale


def _storages(job: PlacedJob, program: ModelProgram, scale: Scale) -> tuple[Storage, ...]:
    """Return the storage of each program's parameters."""
    traffic = job.strategy.traffic
    return tuple(
        block_storage(
            each,
            scale,
            job.software,
            optimizer_state_bytes(job.optimizer),
            reduce_every_micro_batch=traffic.reduce_every_micro_batch,
            samples=float(job.global_batch),
            offload=traffic.offload,
        )
        for each in program.programs
    )


def _moves(
    job: PlacedJob, scale: Scale, rates: Rates, behind: Mapping[str, Tier], tier2_offload: Offload
) -> Movement:
    """Return what moves beside the work of ranks with these rates.

    Args:
        job: The job.
        scale: Values of its symbols.
        rates: What its devices reach.
        behind: Memory that copies go to.
        tier2_offload: What kernels reach where it waits.
    """
    strategy, software = job.strategy, job.software
    state = optimizer_state_bytes(job.optimizer)
    return movement_of(
        strategy,
        software,
        behind,
        memory_bytes_per_s=float(update_bytes_per_s(state, software, rates)),
        tier2_offload=(
            tier2_offload,
            float(update_bytes_per_s(state, software, rates, tier2=True)),
        ),
        update_traffic_bytes=lambda elements: float(
            update_traffic_bytes(
                np.array(elements), state, software, processes=strategy.colocation.processes
            )
        ),
        # Only one process scatters what its devices are given.
        sample_bytes=given_bytes(job.model, scale, rates.element_bytes)
        if strategy.single_process
        else 0.0,
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
        each_serves=job.strategy.degrees[AxisRole.TENSOR] if job.software.broadcasts_data else 1,
    )
    check_host_memory(found)
    return found


def _expanded(job: PlacedJob, cluster: Cluster, tier2_offload: Offload) -> ExpandedMemory | None:
    """Return the expanded memory of a device, with what lies there."""
    layers = max(job.model.layers, 1) / job.strategy.mesh.stages
    return expanded_memory(
        tier2_offload,
        cluster.node,
        devices=cluster.devices,
        spilled=job.spilled,
        stage_layers=np.asarray(layers),
    )


def _topology(
    job: PlacedJob, cluster: Cluster, tiers: Sequence[str], storage: Loader | None
) -> MeshTopology:
    """Return the mesh on the cluster, with links to memory behind its devices and to storage."""
    topology = MeshTopology(mesh=job.strategy.mesh, cluster=cluster, devices=job.devices)
    given = {"place": job.devices is not None, "strategy.offload": bool(tiers)}
    if cluster.is_mixed and any(given.values()):
        reason = "found together with cluster.pools of different nodes; expected nodes of one kind"
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
    if topology.cluster.is_mixed or topology.devices is not None:
        return RankPlacement(shapes=kind.shapes)  # axes may lie across each other
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
                "place": "found parts of scale-up domains, or another order inside them; expected "
                "whole ones in order where collectives has algorithms, or where nodes have no "
                "switch inside: it matters which devices"
            }
        )
