"""Pass 10b: the rank classes of every stage, with what differs between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.arrays import StageClasses, TransferCosts
from wattree.compiler.fold import folded_classes
from wattree.compiler.links import (
    LinkClasses,
    joint_links,
    largest_runs,
    link_classes,
    members_by_link,
    rank_rates,
)
from wattree.compiler.topology import LinkUse, MeshTopology
from wattree.cost.rates import Rates

__all__ = ["RanksOfJob", "rank_classes"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """What tells ranks apart.

    Attributes:
        by_stage: Ranks of each stage, `(stages, ranks of a stage)`.
        ahead, behind: Peer of each rank in the next and the previous stage, itself if none.
        reach_ahead, reach_behind: How far the peer lies, from `MeshTopology.reach`.
        slowdown: Factor on each rank's compute time.
        mirror: Peer of each rank in the stage as far from the other end.
        reach_mirror: How far that peer lies.
    """

    by_stage: Integers
    ahead: Integers
    behind: Integers
    reach_ahead: Integers
    reach_behind: Integers
    slowdown: Floats
    mirror: Integers
    reach_mirror: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksOfJob:
    """One job's ranks, before any are folded.

    Attributes:
        topology: The mesh on the cluster.
        axes_index: Axes sets that collectives run over → their numbers.
        residents: Memory held for the whole step, by stage and category. [B]
        boundary_bytes: What a stage hands to the next for one micro-batch. [B]
        rates: What links reach.
        mirrored: Whether stages as far from either end hold the same, and exchange gradients.
        label: What the names of its classes begin with.
    """

    topology: MeshTopology
    axes_index: Mapping[tuple[str, ...], int]
    residents: Sequence[Floats]
    boundary_bytes: float
    rates: Rates
    mirrored: bool = False
    label: str = ""

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
    places = [_places(job.topology, job.rates) for job in jobs]
    uses = joint_links([job.topology.links() for job in jobs])
    first = np.cumsum([0, *(job.topology.mesh.ranks for job in jobs)])
    colours = np.arange(first[-1])
    if fold:
        colours = _folded(jobs, places, uses, first)
    result: list[StageClasses] = []
    numbers = np.empty(first[-1], dtype=np.int64)  # of classes, over all stages
    adapter = next(use.ranks_per_link for use in uses if use.load == "adapter_bytes")
    base = 0
    for job, place, start in zip(jobs, places, first, strict=False):
        own = slice(start, start + job.topology.mesh.ranks)
        twins = [replace(use, of_rank=use.of_rank[own]) for use in uses] if fold else []
        stages, local = _stage_classes(job, place, colours[own], adapter, twins)
        numbers[own] = base + local
        base += sum(len(stage.ranks) for stage in stages)
        result += stages
    return result, link_classes(uses, numbers, rank_rates(jobs[0].rates.links))


def _folded(
    jobs: Sequence[RanksOfJob],
    places: Sequence[_Places],
    uses: Sequence[LinkUse],
    first: Integers,
) -> Integers:
    """Return the class of every rank of all jobs, numbered one job after another."""
    colours, groups, base = [], [], 0
    peers: list[list[Integers]] = [[], [], []]
    for job, place, start in zip(jobs, places, first, strict=False):
        own = _first_colours(place)
        mirror = place.mirror if job.mirrored else np.arange(len(own))
        if job.mirrored:
            own = own * 3 + place.reach_mirror
        colours.append(base + own)
        base += int(own.max()) + 1
        groups += [start + members for members in job.groups.values()]
        for row, peer in zip(peers, (place.ahead, place.behind, mirror), strict=True):
            row.append(start + peer)
    together = np.concatenate(colours)
    for use in uses:
        if use.slowdown is not None:
            kinds = np.unique(use.slowdown[use.of_rank], return_inverse=True)[1]
            together = together * (kinds.max() + 1) + kinds
    on_links = [members for use in uses if (members := members_by_link(use)) is not None]
    count = 3 if any(job.mirrored for job in jobs) else 2
    neighbours = [np.concatenate(row) for row in peers[:count]]
    return folded_classes(together, [*groups, *on_links], neighbours)


def _stage_classes(
    job: RanksOfJob,
    places: _Places,
    colours: Integers,
    adapter: float,
    folded_uses: Sequence[LinkUse],
) -> tuple[list[StageClasses], Integers]:
    """Return the classes of each stage of a job, and the class of each rank, over its stages."""
    shares = any(np.bincount(use.of_rank).max(initial=0) > 1 for use in folded_uses)
    stages, rates = len(places.by_stage), job.rates
    groups = job.groups
    local = [
        np.unique(colours[ranks], return_index=True, return_inverse=True)
        for ranks in places.by_stage
    ]
    numbers = np.empty(len(colours), dtype=np.int64)
    result, base = [], 0
    for stage, ranks in enumerate(places.by_stage):
        _, first, inverse = local[stage]
        numbers[ranks] = base + inverse
        base += len(first)
        chosen = ranks[first]  # one rank stands for each class
        place = np.full(len(colours), -1)
        place[ranks] = inverse

        def costs(
            reach: Integers, size: float, peers: Integers, chosen: Integers = chosen
        ) -> TransferCosts:
            stretch = _stretch(job, chosen, peers[chosen])
            return _transfer_costs(size, reach[chosen], stretch, rates, adapter)

        result.append(
            StageClasses(
                ranks=np.bincount(inverse),
                slowdown=places.slowdown[chosen],
                orbits={n: _orbits(members, place, len(chosen)) for n, members in groups.items()},
                next_class=local[(stage + 1) % stages][2][first],
                previous_class=local[(stage - 1) % stages][2][first],
                to_next=costs(places.reach_ahead, job.boundary_bytes, places.ahead),
                to_previous=costs(places.reach_behind, job.boundary_bytes, places.behind),
                resident=np.tile(job.residents[stage], (len(chosen), 1)),
                name=job.label + (f"stage {stage}" if stages > 1 else "ranks"),
                mirror_class=local[stages - 1 - stage][2][first] if job.mirrored else None,
                to_mirror_per_byte=costs(places.reach_mirror, 1.0, places.mirror)
                if job.mirrored
                else None,
                members={
                    n: _on_one_link(members, place, folded_uses) for n, members in groups.items()
                }
                if shares
                else None,
            )
        )
    return result, numbers


def _stretch(job: RanksOfJob, senders: Integers, receivers: Integers) -> Floats:
    """Return how much longer messages inside a domain take than through a port alone."""
    topology = job.topology
    distance = (topology.device_of(receivers) - topology.device_of(senders)).astype(np.float64)
    filled = np.repeat(topology.filled, len(senders))
    return job.rates.collectives.transfer_stretch(distance, filled)


def _places(topology: MeshTopology, rates: Rates) -> _Places:
    ranks = topology.mesh.ranks
    stages = topology.mesh.degree("pp")
    by_stage = np.stack([topology.stage_ranks(stage) for stage in range(stages)])
    everyone = np.arange(ranks)
    ahead, behind, mirror = everyone.copy(), everyone.copy(), everyone.copy()
    if stages > 1:
        mirror[by_stage] = by_stage[::-1]
        ahead[by_stage] = np.roll(by_stage, -1, axis=0)
        behind[by_stage] = np.roll(by_stage, 1, axis=0)
    nodes = max(ranks / topology.cluster.node.devices, 1.0)
    slowdown = np.full(ranks, 1.0 + rates.straggling * np.log2(nodes))
    if given := topology.cluster.slowdown:
        factors = np.ones(topology.cluster.devices)
        factors[list(given)] = list(given.values())
        slowdown *= factors[topology.device_of(everyone)]
    return _Places(
        by_stage=by_stage,
        ahead=ahead,
        behind=behind,
        reach_ahead=topology.reach(everyone, ahead),
        reach_behind=topology.reach(everyone, behind),
        slowdown=slowdown,
        mirror=mirror,
        reach_mirror=topology.reach(everyone, mirror),
    )


def _first_colours(places: _Places) -> Integers:
    """Number ranks by stage, speed and reach of their transfers."""
    colour = np.zeros(places.by_stage.size, dtype=np.int64)
    for stage, ranks in enumerate(places.by_stage):
        colour[ranks] = stage
    speeds = np.unique(places.slowdown, return_inverse=True)[1]
    colour = colour * (speeds.max() + 1) + speeds
    return np.asarray((colour * 3 + places.reach_ahead) * 3 + places.reach_behind)


def _on_one_link(members: Integers, place: Integers, uses: Sequence[LinkUse]) -> Integers:
    """Return the members of one group on one link, at most, by kind of link and of group."""
    own = members[place[members[:, 0]] >= 0]
    _, first = np.unique(np.sort(place[own], axis=1), axis=0, return_index=True)
    return np.stack([largest_runs(use.of_rank[own[first]]) for use in uses])


def _orbits(members: Integers, place: Integers, count: int) -> Integers:
    """Return for each class the number of the group kind it takes part in."""
    groups = np.sort(place[members[place[members[:, 0]] >= 0]], axis=1)
    _, kinds = np.unique(groups, axis=0, return_inverse=True)
    orbit = np.zeros(count, dtype=np.int64)
    orbit[groups.ravel()] = np.repeat(kinds.ravel(), groups.shape[1])
    return orbit


def _transfer_costs(
    size_bytes: float,
    reach: Integers,
    stretch: Floats,
    rates: Rates,
    ranks_per_adapter: float,
) -> TransferCosts:
    """Return what transfers cost that share no link with another.

    Args:
        size_bytes: Of one. [B]
        reach: How far they go, from `MeshTopology.reach`.
        stretch: Factor on their time inside a domain: what links take over what a port takes.
        rates: What links reach.
        ranks_per_adapter: Ranks that an adapter is meant for; one alone may use all of it.
    """
    links = rates.links
    crosses = reach > 0
    size = np.full(len(reach), size_bytes)
    inside = size * stretch / links.scale_up_bytes_per_s
    outside = size / (links.adapter_bytes_per_s * ranks_per_adapter)
    alpha = links.alpha_s / 2  # a message, not a collective of several steps
    return TransferCosts(
        latency_s=np.where(crosses, alpha + links.alpha_network_s, alpha),
        work_s=np.where(crosses, outside, inside),
        scale_up_bytes=np.where(crosses, 0.0, size * stretch),
        adapter_bytes=np.where(crosses, size, 0.0),
        uplink_bytes=np.where(reach > 1, size, 0.0),
        wire_bytes=size,
    )
