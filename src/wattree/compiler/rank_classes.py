"""Pass 10b: the rank classes of every stage, with what differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.arrays import StageClasses, TransferCosts
from wattree.compiler.fold import folded_classes
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
        crosses_ahead, crosses_behind: Whether the peer lies in another scale-up domain.
        slowdown: Factor on each rank's compute time.
        mirror: Peer of each rank in the stage as far from the other end.
        crosses_mirror: Whether that peer lies in another scale-up domain.
    """

    by_stage: Integers
    ahead: Integers
    behind: Integers
    crosses_ahead: NDArray[np.bool_]
    crosses_behind: NDArray[np.bool_]
    slowdown: Floats
    mirror: Integers
    crosses_mirror: NDArray[np.bool_]


def rank_classes(
    topology: MeshTopology,
    axes_index: dict[tuple[str, ...], int],
    residents: Sequence[Floats],
    *,
    boundary_bytes: float,
    rates: Rates,
    fold: bool,
    mirrored: bool = False,
) -> list[StageClasses]:
    """Return the classes of each stage.

    Args:
        topology: The mesh on the cluster.
        axes_index: Axes sets that collectives run over → their numbers.
        residents: Memory held for the whole step, by stage and category. [B]
        boundary_bytes: What a stage hands to the next for one micro-batch. [B]
        rates: What links reach.
        fold: Whether equal ranks share a class; otherwise every rank is one.
        mirrored: Whether stages as far from either end hold the same, and exchange gradients.
    """
    places = _places(topology, rates)
    groups = {number: topology.mesh.groups(axes) for axes, number in axes_index.items()}
    colours = np.arange(topology.mesh.ranks)
    if fold:
        peers = [places.ahead, places.behind, *([places.mirror] if mirrored else [])]
        first_colours = _first_colours(places)
        if mirrored:
            first_colours = first_colours * 2 + places.crosses_mirror
        colours = folded_classes(first_colours, list(groups.values()), peers)
    stages = len(places.by_stage)
    local = [
        np.unique(colours[ranks], return_index=True, return_inverse=True)
        for ranks in places.by_stage
    ]
    result = []
    for stage, ranks in enumerate(places.by_stage):
        _, first, inverse = local[stage]
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
                to_next=_transfer_costs(boundary_bytes, places.crosses_ahead[chosen], rates),
                to_previous=_transfer_costs(boundary_bytes, places.crosses_behind[chosen], rates),
                resident=np.tile(residents[stage], (len(chosen), 1)),
                name=f"stage {stage}" if stages > 1 else "ranks",
                mirror_class=local[stages - 1 - stage][2][first] if mirrored else None,
                to_mirror_per_byte=_transfer_costs(1.0, places.crosses_mirror[chosen], rates)
                if mirrored
                else None,
            )
        )
    return result


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
        crosses_ahead=topology.crosses(everyone, ahead),
        crosses_behind=topology.crosses(everyone, behind),
        slowdown=slowdown,
        mirror=mirror,
        crosses_mirror=topology.crosses(everyone, mirror),
    )


def _first_colours(places: _Places) -> Integers:
    """Number ranks by stage, speed and reach of their transfers."""
    colour = np.zeros(places.by_stage.size, dtype=np.int64)
    for stage, ranks in enumerate(places.by_stage):
        colour[ranks] = stage
    speeds = np.unique(places.slowdown, return_inverse=True)[1]
    colour = colour * (speeds.max() + 1) + speeds
    return np.asarray((colour * 2 + places.crosses_ahead) * 2 + places.crosses_behind)


def _orbits(members: Integers, place: Integers, count: int) -> Integers:
    """Return for each class the number of the group kind it takes part in."""
    groups = np.sort(place[members[place[members[:, 0]] >= 0]], axis=1)
    _, kinds = np.unique(groups, axis=0, return_inverse=True)
    orbit = np.zeros(count, dtype=np.int64)
    orbit[groups.ravel()] = np.repeat(kinds.ravel(), groups.shape[1])
    return orbit


def _transfer_costs(size_bytes: float, crosses: NDArray[np.bool_], rates: Rates) -> TransferCosts:
    links = rates.links
    size = np.full(len(crosses), size_bytes)
    inside, outside = size / links.scale_up_bytes_per_s, size / links.adapter_bytes_per_s
    alpha = links.alpha_s / 2  # a message, not a collective of several steps
    return TransferCosts(
        latency_s=np.where(crosses, alpha + links.alpha_network_s, alpha),
        work_s=np.where(crosses, outside, inside),
        scale_up_bytes=np.where(crosses, 0.0, size),
        adapter_bytes=np.where(crosses, size, 0.0),
        wire_bytes=size,
    )
