"""A job on the ranks of each of its meshes: checked, on devices, its programs made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattree.cost.loading import Loader
from wattree.cost.rates import Rates
from wattree.errors import StrategyError
from wattree.hardware import Cluster
from wattree.lowering.autograd import Autograd
from wattree.lowering.block import ModelProgram, compile_model
from wattree.lowering.legality import check_domains
from wattree.lowering.loading import storage_links
from wattree.lowering.mesh_borders import MeshSide
from wattree.lowering.offload import check_tier2_tables, offload_misfits
from wattree.lowering.owners import RankLevels
from wattree.lowering.passes.window import window_part_misfits
from wattree.lowering.placed import PlacedJob
from wattree.lowering.program import Scale
from wattree.lowering.tiers import tier_links
from wattree.lowering.topology import MeshTopology
from wattree.lowering.uneven import uneven_levels
from wattree.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedJob:
    """A job on the ranks of one mesh, before the groups of its ranks are derived."""

    job: PlacedJob
    cluster: Cluster
    rates: tuple[Rates, ...]
    topology: MeshTopology
    program: ModelProgram
    levels: RankLevels | None
    scale: Scale

    @property
    def first(self) -> MeshSide:
        """The first stage of the mesh."""
        return self._side(self.topology.mesh.stage_numbers[0])

    @property
    def last(self) -> MeshSide:
        """The last stage of the mesh."""
        return self._side(self.topology.mesh.stage_numbers[-1])

    def _side(self, stage: int) -> MeshSide:
        return MeshSide(program=self.program, scale=self.scale, topology=self.topology, stage=stage)


def started(
    job: PlacedJob, cluster: Cluster, tiers: Sequence[str], storage: Loader | None, span: range
) -> StartedJob:
    """Return the parts of a job that do not depend on the groups of its ranks.

    Args:
        job: From `checked_parts`.
        tiers: Memory behind the devices that it or its neighbors use.
        storage: A loader whose storage it or its neighbors read; None if none does.
        span: Block instances that its ranks run.
    """
    # Here an algorithm that cannot serve a group is the user's to know.
    given = (job.rates,) if isinstance(job.rates, Rates) else job.rates
    by_pool = tuple(replace(r, collectives=replace(r.collectives, refuses=True)) for r in given)
    assert len(by_pool) == len(cluster.pools), "rates of every pool"
    topology = _topology(job, cluster, tiers, storage)
    _check_place(topology, by_pool)
    program = _program(job, active_axes(job.strategy), span)
    levels = uneven_levels(job, program, cluster)
    return StartedJob(
        job=job,
        cluster=cluster,
        rates=by_pool,
        topology=topology,
        program=program,
        levels=levels,
        scale=_scale(job, program, levels),
    )


def active_axes(strategy: Strategy) -> frozenset[str]:
    """Return the axes of more than one rank."""
    return frozenset(axis for axis, degree in strategy.mesh.axes if degree > 1)


def _program(job: PlacedJob, active: frozenset[str], span: range) -> ModelProgram:
    """Return the programs of the job's model; only the outputs of blocks that other ranks run.

    Raises:
        StrategyError: Parts are too small for windows, or tables have no room behind the devices.
    """
    strategy = job.strategy
    program = compile_model(
        job.model, strategy.tree, active, autograd=Autograd.of(job.software, strategy)
    ).only(span)
    parts = [part for each in program.programs for part in each.window_parts]
    if beyond := window_part_misfits(parts, dict(strategy.mesh.axes)):
        raise StrategyError(beyond)
    if strategy.traffic.offload.tables is not None:
        check_tier2_tables(program, job.software, strategy.traffic)
    return program


def _scale(job: PlacedJob, program: ModelProgram, levels: RankLevels | None) -> Scale:
    """Return the values of the program's symbols, by level of ranks."""
    strategy = job.strategy
    scale = program.scale(
        {axis: np.array([float(degree)]) for axis, degree in strategy.mesh.axes},
        np.full(
            1 if levels is None else len(levels.load.tokens), strategy.micro_batch(job.global_batch)
        ),
        sequence=job.sequence,
        load=None if levels is None else levels.load,
        several=strategy.schedule.micro_batches > 1,
    )
    if strategy.single_process:
        scale = replace(scale, launches=float(strategy.mesh.ranks))
    return scale


def _topology(
    job: PlacedJob, cluster: Cluster, tiers: Sequence[str], storage: Loader | None
) -> MeshTopology:
    """Return the mesh on the cluster, with links to memory behind its devices and to storage."""
    topology = MeshTopology(mesh=job.strategy.mesh, cluster=cluster, devices=job.devices)
    is_placed = job.devices is not None and not job.strategy.mesh.name
    given = {"place": is_placed, "strategy.offload": bool(tiers)}
    if cluster.is_mixed and any(given.values()):
        reason = "found together with cluster.pools of different nodes; expected nodes of one kind"
        raise StrategyError({key: reason for key, is_given in given.items() if is_given})
    node = cluster.pools[0].node
    if misfits := offload_misfits(job.strategy, job.model, node, optimizer=job.optimizer):
        raise StrategyError(misfits)
    if cluster.is_mixed or (not tiers and storage is None):
        return topology
    devices = topology.device_of(np.arange(job.strategy.mesh.ranks))
    if storage is None:
        return replace(topology, behind=tier_links(cluster.node, tiers, devices))
    used = (*tiers, *(() if "host" in tiers else ("host",)))
    behind = tier_links(cluster.node, used, devices)
    return replace(topology, behind=(*behind, *storage_links(storage, cluster, devices)))


def _check_place(topology: MeshTopology, rates: Sequence[Rates]) -> None:
    """Reject devices if the choice within a scale-up domain matters and cannot be determined."""
    if not any(each.collectives.looks_at_any() for each in rates):
        return
    check_domains(topology.cluster, rates, even=topology.has_even_domains)
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
