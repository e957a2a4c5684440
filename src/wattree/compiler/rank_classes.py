"""Pass 10b: the rank classes of every stage, with what differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.arrays import StageClasses, TransferCosts
from wattree.compiler.fold import folded_classes
from wattree.compiler.links import LinkClasses, link_classes, members_by_link, rank_rates
from wattree.compiler.topology import MeshTopology
from wattree.cost.rates import Rates

__all__ = ["rank_classes"]

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


def rank_classes(
    topology: MeshTopology,
    axes_index: dict[tuple[str, ...], int],
    residents: Sequence[Floats],
    *,
    boundary_bytes: float,
    rates: Rates,
    fold: bool,
    mirrored: bool = False,
    levels: Integers | None = None,
) -> tuple[list[StageClasses], tuple[LinkClasses, ...]]:
    """Return the classes of each stage, and the link classes that all of them use.

    Args:
        topology: The mesh on the cluster.
        axes_index: Axes sets that collectives run over → their numbers.
        residents: Memory held for the whole step, by stage and category. [B]
        boundary_bytes: What a stage hands to the next for one micro-batch. [B]
        rates: What links reach.
        fold: Whether equal ranks share a class; otherwise every rank is one.
        mirrored: Whether stages as far from either end hold the same, and exchange gradients.
        levels: Level of each rank, by how many tokens its experts get; None: all have the same.
    """
    places = _places(topology, rates)
    groups = {number: topology.mesh.groups(axes) for axes, number in axes_index.items()}
    uses = topology.links()
    colours = np.arange(topology.mesh.ranks)
    if levels is None:
        levels = np.zeros(topology.mesh.ranks, dtype=np.int64)
    if fold:
        peers = [places.ahead, places.behind, *([places.mirror] if mirrored else [])]
        first_colours = _first_colours(places) * (levels.max() + 1) + levels
        if mirrored:
            first_colours = first_colours * 3 + places.reach_mirror
        for use in uses:
            if use.slowdown is not None:
                kinds = np.unique(use.slowdown[use.of_rank], return_inverse=True)[1]
                first_colours = first_colours * (kinds.max() + 1) + kinds
        on_links = [members for use in uses if (members := members_by_link(use)) is not None]
        colours = folded_classes(first_colours, [*groups.values(), *on_links], peers)
    stages = len(places.by_stage)
    local = [
        np.unique(colours[ranks], return_index=True, return_inverse=True)
        for ranks in places.by_stage
    ]
    adapter = next(use.ranks_per_link for use in uses if use.load == "adapter_bytes")

    def stretch(chosen: Integers, peers: Integers) -> Floats:
        distance = (peers[chosen] - chosen).astype(np.float64)
        filled = np.repeat(topology.filled, len(chosen))
        return rates.collectives.transfer_stretch(distance, filled)

    numbers = np.empty(topology.mesh.ranks, dtype=np.int64)  # of classes, over all stages
    result, base = [], 0
    for stage, ranks in enumerate(places.by_stage):
        _, first, inverse = local[stage]
        numbers[ranks] = base + inverse
        base += len(first)
        chosen = ranks[first]  # one rank stands for each class
        place = np.full(topology.mesh.ranks, -1)
        place[ranks] = inverse
        result.append(
            StageClasses(
                ranks=np.bincount(inverse),
                slowdown=places.slowdown[chosen],
                orbits={n: _orbits(members, place, len(chosen)) for n, members in groups.items()},
                next_class=local[(stage + 1) % stages][2][first],
                previous_class=local[(stage - 1) % stages][2][first],
                to_next=_transfer_costs(
                    boundary_bytes,
                    places.reach_ahead[chosen],
                    stretch(chosen, places.ahead),
                    rates,
                    adapter,
                ),
                to_previous=_transfer_costs(
                    boundary_bytes,
                    places.reach_behind[chosen],
                    stretch(chosen, places.behind),
                    rates,
                    adapter,
                ),
                resident=np.tile(residents[stage], (len(chosen), 1)),
                name=f"stage {stage}" if stages > 1 else "ranks",
                level=levels[chosen],
                mirror_class=local[stages - 1 - stage][2][first] if mirrored else None,
                to_mirror_per_byte=_transfer_costs(
                    1.0,
                    places.reach_mirror[chosen],
                    stretch(chosen, places.mirror),
                    rates,
                    adapter,
                )
                if mirrored
                else None,
            )
        )
    return result, link_classes(uses, numbers, rank_rates(rates.links))


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
    for device, factor in topology.cluster.slowdown.items():
        if device < ranks:
            slowdown[device] *= factor
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
