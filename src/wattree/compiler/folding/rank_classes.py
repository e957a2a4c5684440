"""Pass 10b: the rank classes of every stage, and their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.compiler.folding.crossings import RankCrossing, rank_crossing, with_crossings
from wattree.compiler.folding.fold import distinct_rows, folded_classes
from wattree.compiler.folding.link_parts import LinkParts, distinguished, link_parts
from wattree.compiler.folding.stage_classes import StageClasses, TransferCosts
from wattree.compiler.folding.transfer_costs import RankLinks, transfer_costs
from wattree.cost.rates import Rates
from wattree.lowering.links import (
    LinkClasses,
    capacities,
    joint_links,
    link_classes,
    members_by_link,
)
from wattree.lowering.mesh_borders import MeshBorder
from wattree.lowering.rank_kinds import RankKinds
from wattree.lowering.topology import LinkUse, MeshTopology
from wattree.strategy import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Properties that distinguish ranks.

    Attributes:
        by_stage: Ranks of each stage, `(stages, ranks of a stage)`.
        ahead, behind: Peer of each rank in the next and the previous stage, itself if none.
        distance_ahead, distance_behind: How far the peer lies, from `MeshTopology.distance`.
        slowdown: Factor on each rank's compute time.
        mirror: Peer of each rank in the stage as far from the other end.
        distance_mirror: How far that peer lies.
        pools: Pool of each rank.
    """

    by_stage: Integers
    ahead: Integers
    behind: Integers
    distance_ahead: Integers
    distance_behind: Integers
    slowdown: Floats
    mirror: Integers
    distance_mirror: Integers
    pools: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksOfJob:
    """One job's ranks, before folding.

    Attributes:
        topology: The mesh on the cluster.
        axes_index: Axes sets that collectives run over → their numbers.
        static_memory: Memory held for the whole step, by stage, then level and category. [B]
        rates: What links reach, by pool.
        kinds: Kinds of ranks, whose times differ.
        levels: Level of each rank, by how many tokens its experts get; None: all have the same.
        mirrored: Whether stages as far from either end hold the same, and exchange gradients.
        label: What the names of its classes begin with.
        before: Border to the ranks before, where they are of another mesh of the same job.
    """

    topology: MeshTopology
    axes_index: Mapping[tuple[str, ...], int]
    static_memory: Sequence[Floats]
    rates: Sequence[Rates]
    kinds: RankKinds
    levels: Integers | None = None
    mirrored: bool = False
    label: str = ""
    before: MeshBorder | None = None

    @property
    def groups(self) -> dict[int, Integers]:
        """Axes number → process groups, `(groups, members)`."""
        mesh = self.topology.mesh
        return {number: mesh.groups(axes) for axes, number in self.axes_index.items()}


def rank_classes(
    jobs: Sequence[RanksOfJob], *, fold: bool
) -> tuple[list[StageClasses], tuple[LinkClasses, ...]]:
    """Return the classes of each stage, job by job, and the link classes that all of them use.

    Args:
        jobs: On one cluster, each on devices of its own.
        fold: Whether equal ranks share a class; otherwise every rank is one.
    """
    places = [
        _places(job.topology, job.rates, ranks)
        for job, ranks in zip(jobs, _ranks_of_jobs(jobs), strict=True)
    ]
    uses = joint_links([job.topology.links() for job in jobs])
    first = np.cumsum([0, *(job.topology.mesh.ranks for job in jobs)])
    rank_links = [
        RankLinks.of(job.topology, job.rates, place.pools)
        for job, place in zip(jobs, places, strict=True)
    ]
    crossings = _crossings(jobs, places, first, rank_links)
    colors = np.arange(first[-1])
    parts: list[dict[int, LinkParts]] = [{} for _ in jobs]
    if fold:
        parts = [_parts(job, uses, start) for job, start in zip(jobs, first, strict=False)]
        colors = _folded(jobs, places, uses, first, crossings=crossings, parts=parts)
    result: list[StageClasses] = []
    numbers = np.empty(first[-1], dtype=np.int64)  # of classes, over all stages
    links = [each.links for each in jobs[0].rates]  # of one cluster and calibration
    base = 0
    for job, place, own_links, own_parts, start in zip(
        jobs, places, rank_links, parts, first, strict=False
    ):
        own = slice(start, start + job.topology.mesh.ranks)
        stages, local = _stage_classes(job, place, colors[own], own_links, own_parts)
        numbers[own] = base + local
        base += sum(len(stage.ranks) for stage in stages)
        result += stages
    return with_crossings(result, crossings, numbers, uses), link_classes(uses, numbers, links)


def _ranks_of_jobs(jobs: Sequence[RanksOfJob]) -> list[int]:
    """Return the ranks of the whole job in each mesh."""
    number = np.cumsum([job.before is None for job in jobs])
    totals = np.bincount(number, weights=[job.topology.mesh.ranks for job in jobs])
    return [int(ranks) for ranks in totals[number]]


def _crossings(
    jobs: Sequence[RanksOfJob],
    places: Sequence[_Places],
    first: Integers,
    links: Sequence[RankLinks],
) -> list[RankCrossing]:
    """Return the transfers to ranks of another mesh of the job."""
    found, stage = [], 0
    for number, job in enumerate(jobs):
        if (border := job.before) is not None:
            both = links[number - 1].joined(links[number])
            shift = len(links[number - 1].device)
            ends = places[number - 1].by_stage[-1], places[number].by_stage[0] + shift
            for source, crossing in enumerate((border.forward, border.backward)):
                found.append(
                    rank_crossing(
                        crossing,
                        (ends[source], ends[1 - source]),
                        both,
                        job.rates,
                        job.topology.cluster,
                        stage=stage - 1 + source,
                        heading=-1 if source else 1,
                        first=int(first[number - 1]),
                    )
                )
        stage += len(places[number].by_stage)
    return found


def _parts(job: RanksOfJob, uses: Sequence[LinkUse], first: int) -> dict[int, LinkParts]:
    """Return the parts of a job's groups on links; its first rank is `first` of all jobs."""
    loads = job.kinds.of_rank
    if job.levels is not None:
        loads = loads * (job.levels.max() + 1) + job.levels
    own = slice(first, first + job.topology.mesh.ranks)
    return link_parts(job.groups, [use.of_rank[own] for use in uses], loads)


def _folded(
    jobs: Sequence[RanksOfJob],
    places: Sequence[_Places],
    uses: Sequence[LinkUse],
    first: Integers,
    *,
    crossings: Sequence[RankCrossing],
    parts: Sequence[Mapping[int, LinkParts]],
) -> Integers:
    """Return the class of every rank of all jobs, numbered one job after another."""
    colors, groups, base = [], [], 0
    peers: list[list[Integers]] = [[], [], []]
    for job, place, own_parts, start in zip(jobs, places, parts, first, strict=False):
        own = _first_colors(place)
        mirror = place.mirror if job.mirrored else np.arange(len(own))
        if job.mirrored:
            own = own * 3 + place.distance_mirror
        own = own * len(job.kinds.kinds) + job.kinds.of_rank
        if job.levels is not None:
            own = own * (job.levels.max() + 1) + job.levels
        own = distinguished(own, own_parts)
        colors.append(base + own)
        base += int(own.max()) + 1
        groups += [start + members for members in job.groups.values()]
        for row, peer in zip(peers, (place.ahead, place.behind, mirror), strict=True):
            row.append(start + peer)
    together = np.concatenate(colors)
    for use in uses:
        together = _split_by_links(together, use, jobs[0].rates)
    on_links = [members for use in uses if (members := members_by_link(use.of_rank)) is not None]
    count = 3 if any(job.mirrored for job in jobs) else 2
    neighbours = [np.concatenate(row) for row in peers[:count]]
    mixing = [*groups, *on_links]
    messages = [crossing.messages for crossing in crossings]
    return folded_classes(together, mixing, neighbours, messages)


def _split_by_links(colors: Integers, use: LinkUse, rates: Sequence[Rates]) -> Integers:
    """Distinguish ranks whose links of one kind differ."""
    for differing in (
        use.slowdown,
        None if use.parts is None else capacities(use, [each.links for each in rates]),
    ):
        if differing is not None:
            found = np.unique(differing[use.of_rank], return_inverse=True)[1]
            colors = colors * (found.max() + 1) + found
    return colors


def _device_labels(topology: MeshTopology) -> tuple[str, ...]:
    """Return the names of each pool's devices for messages; empty if all are equal."""
    pools = topology.cluster.pools
    if len(pools) == 1:
        return ("",)
    for names in ([p.node.device.name for p in pools], [p.node.name for p in pools]):
        if len(set(names)) == len(names):
            return tuple(names)
    return tuple(f"{pool.node.name} of pool {n}" for n, pool in enumerate(pools, start=1))


def _stage_classes(
    job: RanksOfJob,
    places: _Places,
    colors: Integers,
    links: RankLinks,
    parts: Mapping[int, LinkParts],
) -> tuple[list[StageClasses], Integers]:
    """Return the classes of each stage of a job, and the class of each rank, over its stages."""
    stages, groups = len(places.by_stage), job.groups
    devices = _device_labels(job.topology)
    local = [
        np.unique(colors[ranks], return_index=True, return_inverse=True)
        for ranks in places.by_stage
    ]
    numbers = np.empty(len(colors), dtype=np.int64)
    result, base = [], 0
    for stage, ranks in enumerate(places.by_stage):
        _, first, inverse = local[stage]
        numbers[ranks] = base + inverse
        base += len(first)
        chosen = ranks[first]  # one rank stands for each class
        place = np.full(len(colors), -1)
        place[ranks] = inverse

        of_stage = np.array(job.kinds.of_stage(ranks))
        level = (
            np.searchsorted(of_stage, job.kinds.of_rank[chosen])
            if job.levels is None
            else job.levels[chosen]
        )

        def costs(distance: Integers, peers: Integers, chosen: Integers = chosen) -> TransferCosts:
            return transfer_costs(chosen, peers[chosen], distance[chosen], links, job.rates)

        result.append(
            StageClasses(
                ranks=np.bincount(inverse),
                slowdown=places.slowdown[chosen],
                orbits={n: _orbits(members, place, len(chosen)) for n, members in groups.items()},
                next_class=_peers(job, local, stage, 1),
                previous_class=_peers(job, local, stage, -1),
                to_next=costs(places.distance_ahead, places.ahead),
                to_previous=costs(places.distance_behind, places.behind),
                static=job.static_memory[stage][level],
                name=job.label + _stage_name(job.topology.mesh, stage),
                mirror_class=local[stages - 1 - stage][2][None, first] if job.mirrored else None,
                to_mirror=costs(places.distance_mirror, places.mirror) if job.mirrored else None,
                parts={number: part.of(chosen) for number, part in parts.items()},
                level=level,
                pool=places.pools[chosen],
                devices=tuple(devices[pool] for pool in places.pools[chosen].tolist()),
            )
        )
    return result, numbers


def _peers(
    job: RanksOfJob, local: Sequence[tuple[Integers, ...]], stage: int, heading: int
) -> Integers:
    """Return the classes in the next or previous stage; those on other meshes are added later."""
    first, to, stages = local[stage][1], stage + heading, len(local)
    if stages < job.topology.mesh.pipeline and not 0 <= to < stages:
        return np.full((1, len(first)), -1)
    return local[to % stages][2][None, first]


def _stage_name(mesh: Mesh, stage: int) -> str:
    """Return the name of one of a mesh's stages for messages."""
    if mesh.pipeline == 1:
        return "ranks"
    where = f" on {mesh.name}" if mesh.name else ""
    return f"stage {mesh.stage_numbers[stage]}{where}"


def _places(topology: MeshTopology, rates: Sequence[Rates], all_ranks: int) -> _Places:
    """Return the properties that distinguish ranks of a mesh, given all meshes of its job."""
    ranks = topology.mesh.ranks
    stages = topology.mesh.stages
    by_stage = np.stack([topology.stage_ranks(stage) for stage in topology.mesh.stage_numbers])
    everyone = np.arange(ranks)
    ahead, behind, mirror = everyone.copy(), everyone.copy(), everyone.copy()
    if stages > 1:
        mirror[by_stage] = by_stage[::-1]
        ahead[by_stage] = np.roll(by_stage, -1, axis=0)
        behind[by_stage] = np.roll(by_stage, 1, axis=0)
    in_pools = zip(topology.cluster.pool_devices(all_ranks), topology.cluster.pools, strict=True)
    nodes = max(sum(devices / pool.node.devices for devices, pool in in_pools), 1.0)
    pools = topology.pool_of(everyone)
    straggling = np.array([each.straggling for each in rates])
    slowdown = 1.0 + straggling[pools] * np.log2(nodes)
    if given := topology.cluster.slowdown:
        factors = np.ones(topology.cluster.devices)
        factors[list(given)] = list(given.values())
        slowdown *= factors[topology.device_of(everyone)]
    return _Places(
        by_stage=by_stage,
        ahead=ahead,
        behind=behind,
        distance_ahead=topology.distance(everyone, ahead),
        distance_behind=topology.distance(everyone, behind),
        slowdown=slowdown,
        mirror=mirror,
        distance_mirror=topology.distance(everyone, mirror),
        pools=pools,
    )


def _first_colors(places: _Places) -> Integers:
    """Number ranks by stage, speed and whether their transfers leave the domain."""
    color = np.zeros(places.by_stage.size, dtype=np.int64)
    for stage, ranks in enumerate(places.by_stage):
        color[ranks] = stage
    speeds = np.unique(places.slowdown, return_inverse=True)[1]
    color = color * (speeds.max() + 1) + speeds
    return np.asarray((color * 3 + places.distance_ahead) * 3 + places.distance_behind)


def _orbits(members: Integers, place: Integers, count: int) -> Integers:
    """Return for each class the number of the group kind it takes part in."""
    groups = np.sort(place[members[place[members[:, 0]] >= 0]], axis=1)
    _, kinds = distinct_rows(groups)
    orbit = np.zeros(count, dtype=np.int64)
    orbit[groups.ravel()] = np.repeat(kinds, groups.shape[1])
    return orbit
