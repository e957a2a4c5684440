"""A job laid on its cluster: programs, costs, storage and links, before any task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from wattree.cost import GroupShape, Software
from wattree.cost.expanded import ExpandedMemory
from wattree.cost.loading import Loader
from wattree.cost.rates import Rates
from wattree.cost.update import update_bytes_per_s, update_products_s, update_traffic_bytes
from wattree.graph import ModelGraph
from wattree.hardware import Cluster
from wattree.lowering.block import ModelProgram
from wattree.lowering.colocation import SharedWork
from wattree.lowering.costs import BlockCosting, BlockCosts
from wattree.lowering.dataflow import chunk_stages, with_boundary_copies
from wattree.lowering.layout import local_size
from wattree.lowering.loading import Loading, check_host_memory, loading_of
from wattree.lowering.memory_tier_access import expanded_memory, split_offload
from wattree.lowering.mesh_borders import MeshBorder, mesh_border
from wattree.lowering.mesh_parts import mesh_spans, stage_chunks
from wattree.lowering.movement import (
    Movement,
    bucket_bytes,
    parameter_bucket_bytes,
    resolved_overlap,
    resolved_traffic,
)
from wattree.lowering.optimizer_state import (
    optimizer_state_bytes,
    update_kinds,
    update_working_bytes,
)
from wattree.lowering.owners import RankLevels
from wattree.lowering.placed import PlacedJob, checked_parts
from wattree.lowering.program import Scale
from wattree.lowering.rank_kinds import RankKind, RankKinds, RankPlacement, axes_sets, rank_kinds
from wattree.lowering.started import StartedJob, started
from wattree.lowering.storage import Storage, block_storage
from wattree.lowering.tiers import Tier, tiers_of
from wattree.lowering.topology import MeshTopology
from wattree.strategy import AxisRole, Offload, Strategy

#: Bytes of one token id as loaders hand it to the device (int64).
_TOKEN_BYTES = 8.0


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
    chunks: tuple[tuple[int, ...], ...]  # block instances of each chunk of the pipeline
    before: MeshBorder | None = None  # where stages of another mesh come first
    after: MeshBorder | None = None  # where stages of another mesh follow

    @property
    def level_count(self) -> int:
        """How many kinds of ranks there are by the tokens of their experts."""
        return 1 if self.levels is None else len(self.levels.load.tokens)

    @property
    def shared(self) -> SharedWork | None:
        """The share of the device for one of several processes in a step; None for a single one."""
        found: SharedWork | None = None
        for number in self.program.instances:
            own = self.costs[number].shared
            if own is not None:
                found = own if found is None else found.plus(own)
        return None if found is None else found.times(float(self.strategy.schedule.micro_batches))

    @property
    def group(self) -> Callable[[tuple[str, ...]], GroupShape]:
        """How groups over axes look to these ranks."""
        return self.kind.shapes.__getitem__


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
) -> tuple[LoweredJob, ...]:
    """Return the contents of a job's step on the ranks of each of its meshes.

    Args:
        tiers: Memory behind the devices that it or its neighbors use.
        storage: A loader whose storage it or its neighbors read; None if none does.
    """
    parts = checked_parts(job, cluster)
    spans = mesh_spans(parts[0].model, job.strategy)
    begun = [
        started(part, cluster, tiers, storage, span)
        for part, span in zip(parts, spans, strict=True)
    ]
    chunks = stage_chunks(begun[0].job.model, job.strategy)
    if len(begun) == 1:
        return (_finished(begun[0], chunks, None, None),)
    borders = [
        mesh_border(before.last, after.first, chunks, before.rates[0])
        for before, after in pairwise(begun)
    ]
    between = [None, *borders, None]
    return tuple(
        _finished(part, chunks, *ends) for part, ends in zip(begun, pairwise(between), strict=True)
    )


def _finished(
    begun: StartedJob,
    chunks: tuple[tuple[int, ...], ...],
    before: MeshBorder | None,
    after: MeshBorder | None,
) -> LoweredJob:
    """Return the work of the ranks of a mesh.

    Args:
        chunks: Block instances of each chunk of the pipeline.
    """
    job, cluster, by_pool = begun.job, begun.cluster, begun.rates
    topology, scale, levels = begun.topology, begun.scale, begun.levels
    strategy, software = job.strategy, job.software
    program = _with_copies(begun.program, strategy, chunks)
    piped = strategy.stages > 1 and program.shards_gradients
    traffic = resolved_traffic(strategy.traffic, software, pipelined=piped)
    strategy = replace(strategy, traffic=traffic)
    job = replace(job, strategy=strategy)
    storages = _storages(job, program, scale)
    sets, links = axes_sets(program, storages), [each.links for each in by_pool]
    sets = tuple(dict.fromkeys((*sets, *_axes_of_arrivals(before, after))))
    kinds = rank_kinds(topology, sets, links, leveled=levels is not None)
    copied, tier2_offload = strategy.traffic.offload, Offload()
    if copied.tiers:  # then nodes are of one kind
        copied, tier2_offload = split_offload(copied, cluster.node)
    devices = topology.device_of(np.arange(strategy.mesh.ranks))
    update_rate = by_pool[0].host_update_rate
    behind = tiers_of(cluster.node, copied.tiers, devices, update_rate) if copied.tiers else {}
    loading = _loading(job, topology, samples=float(scale.micro_batch[0]))
    steps = []
    for kind in kinds.kinds:
        rates, placement = by_pool[kind.pool], RankPlacement(shapes=kind.shapes)
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
                state_bytes=optimizer_state_bytes(job.optimizer, software),
                input_bytes=input_bytes(job.model, scale),
                loading=loading[kind.pool] if loading else None,
                levels=levels,
                chunks=chunks,
                before=before,
                after=after,
            )
        )
    return LoweredJob(
        of_kind=tuple(steps), kinds=kinds, rates=by_pool, loading=loading, label=job.label
    )


def _axes_of_arrivals(*borders: MeshBorder | None) -> list[tuple[str, ...]]:
    before, after = borders
    crossings = [*([before.forward] if before else []), *([after.backward] if after else [])]
    return [arrival.axes for crossing in crossings for arrival in crossing.arrivals]


def _with_copies(
    program: ModelProgram, strategy: Strategy, chunks: Sequence[Sequence[int]]
) -> ModelProgram:
    """Return the program with the memory of chunks for tensors that are carried past them."""
    if (count := strategy.mesh.pipeline) == 1:
        return program
    return with_boundary_copies(program, chunks, chunk_stages(strategy.schedule.placed(count)))


def _storages(job: PlacedJob, program: ModelProgram, scale: Scale) -> tuple[Storage, ...]:
    """Return the storage of each program's parameters."""
    traffic = job.strategy.traffic
    return tuple(
        block_storage(
            each,
            scale,
            job.software,
            update_kinds(job.optimizer, job.software),
            reduce_every_micro_batch=traffic.reduce_every_micro_batch,
            samples=float(job.global_batch),
            offload=traffic.offload,
            reshards=traffic.reshard_after_forward,
        )
        for each in program.programs
    )


def _moves(
    job: PlacedJob, scale: Scale, rates: Rates, behind: Mapping[str, Tier], tier2_offload: Offload
) -> Movement:
    """Return the data movement that overlaps the work of ranks with these rates.

    Args:
        behind: Memory that copies go to.
        tier2_offload: What kernels reach where it waits.
    """
    strategy, software, traffic = job.strategy, job.software, job.strategy.traffic
    state, processes = optimizer_state_bytes(job.optimizer, software), strategy.colocation.processes
    buckets = traffic, software, scale
    working = update_working_bytes(job.optimizer, software)
    return Movement(
        overlap=resolved_overlap(strategy, software),
        bucket_bytes=float(bucket_bytes(*buckets)[0]),
        parameter_bucket_bytes=float(parameter_bucket_bytes(*buckets)[0]),
        early_updates=traffic.overlap_optimizer,
        offload=traffic.offload.without(tier2_offload),
        accumulates=software.accumulates,
        tier2_offload=tier2_offload,
        tiers=behind,
        memory_bytes_per_s=float(update_bytes_per_s(state, software, rates)),
        tier2_bytes_per_s=float(update_bytes_per_s(state, software, rates, tier2=True)),
        update_traffic_bytes=lambda elements, wider: float(
            update_traffic_bytes(
                np.array(elements), state, software, processes=processes, wider_state=wider
            )
        ),
        update_products_s=lambda flop: float(update_products_s(flop, rates, processes=processes)),
        # Updated as they are reduced, few are at a time.
        update_working_bytes=0.0 if traffic.overlap_optimizer else working,
        gradient_bytes=software.gradient_bytes,
        parameter_bytes=software.parameter_bytes,
        single_process=strategy.single_process,
        # Only one process scatters what its devices are given.
        sample_bytes=given_bytes(job.model, scale, rates.element_bytes)
        if strategy.single_process
        else 0.0,
        replica_axes=tuple(axis for axis, _ in strategy.mesh.axes),
    )


def _loading(job: PlacedJob, topology: MeshTopology, *, samples: float) -> tuple[Loading, ...]:
    """Return the input loading of the ranks of each pool; empty without a loader."""
    if job.loader is None or job.strategy.mesh.stages_before:
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
    """Return the expanded memory of a device, with its contents."""
    layers = max(job.model.layers, 1) / job.strategy.mesh.pipeline
    return expanded_memory(
        tier2_offload,
        cluster.node,
        devices=cluster.devices,
        spilled=job.spilled,
        stage_layers=np.asarray(layers),
    )


def given_bytes(model: ModelGraph, scale: Scale, element_bytes: float) -> float:
    """Return the bytes of a micro-batch's samples over all replicas. [B]

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


def input_bytes(model: ModelGraph, scale: Scale) -> float:
    """Return the token ids of a micro-batch of one replica, for which the step waits. [B]

    Samples of other models are large, and loaders read and copy them ahead: the job says how.
    """
    if not model.own_family:
        return 0.0
    return float(scale.micro_batch[0]) * scale.sequence * _TOKEN_BYTES
