"""Pass 10b: the rank classes of every stage, with what differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.arrays import StageClasses, TransferCosts
from wattree.compiler.fold import folded_classes, uneven_on_links
from wattree.compiler.kinds import RankKinds
from wattree.compiler.links import LinkClasses, capacities, link_classes, members_by_link
from wattree.compiler.topology import LinkUse, MeshTopology
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
        pools: Pool of each rank.
    """

    by_stage: Integers
    ahead: Integers
    behind: Integers
    reach_ahead: Integers
    reach_behind: Integers
    slowdown: Floats
    mirror: Integers
    reach_mirror: Integers
    pools: Integers


def rank_classes(
    topology: MeshTopology,
    axes_index: dict[tuple[str, ...], int],
    residents: Sequence[Floats],
    *,
    boundary_bytes: float,
    rates: Sequence[Rates],
    kinds: RankKinds,
    fold: bool,
    mirrored: bool = False,
) -> tuple[list[StageClasses], tuple[LinkClasses, ...]]:
    """Return the classes of each stage, and the link classes that all of them use.

    Args:
        topology: The mesh on the cluster.
        axes_index: Axes sets that collectives run over → their numbers.
        residents: Memory held for the whole step, by stage and category. [B]
        boundary_bytes: What a stage hands to the next for one micro-batch. [B]
        rates: What links reach, by pool.
        kinds: Kinds of ranks, whose times differ.
        fold: Whether equal ranks share a class; otherwise every rank is one.
        mirrored: Whether stages as far from either end hold the same, and exchange gradients.
    """
    places = _places(topology, rates)
    groups = {number: topology.mesh.groups(axes) for axes, number in axes_index.items()}
    uses = topology.links()
    colours = np.arange(topology.mesh.ranks)
    if fold:
        peers = [places.ahead, places.behind, *([places.mirror] if mirrored else [])]
        first_colours = _first_colours(places)
        if mirrored:
            first_colours = first_colours * 3 + places.reach_mirror
        first_colours = first_colours * len(kinds.kinds) + kinds.of_rank
        for use in uses:
            first_colours = _told_apart(first_colours, use, rates)
        on_links = [members for use in uses if (members := members_by_link(use)) is not None]
        mixing = [*groups.values(), *on_links]
        colours = folded_classes(first_colours, mixing, peers)
        while topology.cluster.is_mixed:
            finer = uneven_on_links(colours, on_links)
            if finer is None:
                break
            colours = folded_classes(finer, mixing, peers)
    stages = len(places.by_stage)
    local = [
        np.unique(colours[ranks], return_index=True, return_inverse=True)
        for ranks in places.by_stage
    ]
    links = [each.links for each in rates]
    adapters = next(use for use in uses if use.load == "adapter_bytes")
    alone = _Alone(
        alpha_s=np.array([each.alpha_s for each in links])[places.pools],
        alpha_network_s=np.array([each.alpha_network_s for each in links])[places.pools],
        scale_up_bytes_per_s=np.array([e.scale_up_bytes_per_s for e in links])[places.pools],
        adapter_bytes_per_s=capacities(adapters, links)[adapters.of_rank],
    )
    devices = _device_labels(topology)
    numbers = np.empty(topology.mesh.ranks, dtype=np.int64)  # of classes, over all stages
    result, base = [], 0
    for stage, ranks in enumerate(places.by_stage):
        _, first, inverse = local[stage]
        numbers[ranks] = base + inverse
        base += len(first)
        chosen = ranks[first]  # one rank stands for each class
        of_stage = np.array(kinds.of_stage(ranks))
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
                    boundary_bytes, chosen, places.ahead, places.reach_ahead, alone
                ),
                to_previous=_transfer_costs(
                    boundary_bytes, chosen, places.behind, places.reach_behind, alone
                ),
                resident=np.tile(residents[stage], (len(chosen), 1)),
                name=f"stage {stage}" if stages > 1 else "ranks",
                mirror_class=local[stages - 1 - stage][2][first] if mirrored else None,
                to_mirror_per_byte=_transfer_costs(
                    1.0, chosen, places.mirror, places.reach_mirror, alone
                )
                if mirrored
                else None,
                kind=np.searchsorted(of_stage, kinds.of_rank[chosen]),
                pool=places.pools[chosen],
                devices=tuple(devices[pool] for pool in places.pools[chosen].tolist()),
            )
        )
    return result, link_classes(uses, numbers, links)


def _told_apart(colours: Integers, use: LinkUse, rates: Sequence[Rates]) -> Integers:
    """Tell ranks apart whose links of one kind differ, or who share an adapter of a pool's.

    Senders of other devices come to an adapter at other times, and its shares are by flow: each
    rank needs its own for the shares to be those of the ranks.
    """
    if use.parts is not None and use.load == "adapter_bytes":
        order = np.argsort(use.of_rank, kind="stable")
        counts = np.bincount(use.of_rank)
        place = np.empty_like(colours)
        place[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        colours = colours * (place.max() + 1) + place
    for differing in (
        use.slowdown,
        None if use.parts is None else capacities(use, [each.links for each in rates]),
    ):
        if differing is not None:
            found = np.unique(differing[use.of_rank], return_inverse=True)[1]
            colours = colours * (found.max() + 1) + found
    return colours


def _device_labels(topology: MeshTopology) -> tuple[str, ...]:
    """Return what people call the devices of each pool; nothing where all are alike."""
    pools = topology.cluster.pools
    if len(pools) == 1:
        return ("",)
    for names in ([p.node.device.name for p in pools], [p.node.name for p in pools]):
        if len(set(names)) == len(names):
            return tuple(names)
    return tuple(f"{pool.node.name} of pool {n}" for n, pool in enumerate(pools, start=1))


def _places(topology: MeshTopology, rates: Sequence[Rates]) -> _Places:
    ranks = topology.mesh.ranks
    stages = topology.mesh.degree("pp")
    by_stage = np.stack([topology.stage_ranks(stage) for stage in range(stages)])
    everyone = np.arange(ranks)
    ahead, behind, mirror = everyone.copy(), everyone.copy(), everyone.copy()
    if stages > 1:
        mirror[by_stage] = by_stage[::-1]
        ahead[by_stage] = np.roll(by_stage, -1, axis=0)
        behind[by_stage] = np.roll(by_stage, 1, axis=0)
    in_pools = zip(topology.cluster.pool_devices(ranks), topology.cluster.pools, strict=True)
    nodes = max(sum(devices / pool.node.devices for devices, pool in in_pools), 1.0)
    pools = topology.pool_of(everyone)
    straggling = np.array([each.straggling for each in rates])
    slowdown = 1.0 + straggling[pools] * np.log2(nodes)
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
        pools=pools,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alone:
    """What each rank's links do for a message that shares them with nobody, `(ranks,)` each."""

    alpha_s: Floats
    alpha_network_s: Floats
    scale_up_bytes_per_s: Floats
    adapter_bytes_per_s: Floats


def _transfer_costs(
    size_bytes: float, senders: Integers, peers: Integers, reach: Integers, links: _Alone
) -> TransferCosts:
    """Return what transfers cost that share no link with another.

    The slower end decides; the other's link has room to spare.

    Args:
        size_bytes: Of one. [B]
        senders: Ranks that send.
        peers: Rank that each rank sends to.
        reach: How far that is, by rank, from `MeshTopology.reach`.
        links: Of all ranks.
    """
    receivers, reach = peers[senders], reach[senders]
    crosses = reach > 0
    size = np.full(len(reach), size_bytes)

    def slower(rates: Floats) -> Floats:
        return np.minimum(rates[senders], rates[receivers])

    # Half: a message, not a collective of several steps.
    alpha = np.maximum(links.alpha_s[senders], links.alpha_s[receivers]) / 2
    network = np.maximum(links.alpha_network_s[senders], links.alpha_network_s[receivers])
    inside = size / slower(links.scale_up_bytes_per_s)
    outside = size / slower(links.adapter_bytes_per_s)
    return TransferCosts(
        latency_s=np.where(crosses, alpha + network, alpha),
        work_s=np.where(crosses, outside, inside),
        scale_up_bytes=np.where(crosses, 0.0, size),
        adapter_bytes=np.where(crosses, size, 0.0),
        uplink_bytes=np.where(reach > 1, size, 0.0),
        wire_bytes=size,
    )
