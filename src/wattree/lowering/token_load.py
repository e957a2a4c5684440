"""Levels of work of ranks whose experts are not equally popular."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.distinct import distinct
from wattree.errors import StrategyError
from wattree.lowering.block import ModelProgram
from wattree.lowering.program import TokenLoad
from wattree.strategy import ExpertLoad, Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLevels:
    """Ranks by how many tokens their experts get.

    Attributes:
        load: One entry for each level, the busiest first.
        of_rank: Level of each rank, `(ranks,)`.
    """

    load: TokenLoad
    of_rank: Integers


def port_factors(tokens: Floats) -> Floats:
    """Return the ratio of an uneven exchange's bytes on each rank's ports to an even one's.

    Every rank has as many tokens of its own, and sends each rank the same share of them: it gets
    its own share from all, and sends off what is for others. The way with more bounds the port.

    Args:
        tokens: Of each rank over the mean, `(ranks,)`.
    """
    others = (tokens.sum() - tokens) / max(len(tokens) - 1, 1)
    return np.asarray(np.maximum(tokens, others))


def rank_levels(
    load: ExpertLoad | None, program: ModelProgram, mesh: Mesh, *, dropless: bool
) -> RankLevels | None:
    """Return the levels of the ranks of `mesh`; None if all have the same to do.

    Args:
        dropless: Whether the software takes all tokens, whatever their number.

    Raises:
        StrategyError: More tokens on one rank than there are, or layers that spread their experts
            in different ways.
    """
    places = program.expert_places
    if load is None or not places:
        return None
    if len({(place.experts, place.axes) for place in places}) > 1:
        raise StrategyError(
            {
                "strategy.expert_imbalance": "layers spread their experts in different ways, so no "
                "rank is the busiest in all; leave it out"
            }
        )
    (place,) = places
    ranks = mesh.size(place.axes)
    if load.imbalance > ranks:
        raise StrategyError(
            {
                "strategy.expert_imbalance": f"found {load.imbalance:g}, but experts are spread "
                f"over {ranks} ranks, of which one gets at most {ranks} times the mean"
            }
        )
    tokens = load.taken(experts=place.experts, ranks=ranks, dropless=dropless)
    if (tokens == 1.0).all():
        return None
    member = members_of(place.axes, mesh)
    ports = port_factors(tokens)
    pairs, level = np.unique(np.stack([-tokens, ports], axis=1), axis=0, return_inverse=True)
    count = len(pairs)
    return RankLevels(
        load=TokenLoad(
            tokens=-pairs[:, 0],
            ports=pairs[:, 1].copy(),
            busiest=np.full(count, float(ports.max())),
            leader=np.zeros(count, dtype=np.int64),
        ),
        of_rank=level.ravel()[member],
    )


def tokens_of(
    load: ExpertLoad, program: ModelProgram, mesh: Mapping[str, Floats], *, dropless: bool
) -> Floats:
    """Return the tokens of the busiest rank over the mean, and the mean taken, `(2, n)`.

    Args:
        mesh: Axis → degrees of many meshes, `(n,)` each.
        dropless: As for `rank_levels`.
    """
    one = np.ones_like(next(iter(mesh.values())))
    most, mean = one.copy(), one.copy()
    for place in program.expert_places:
        ranks = np.prod([one, *(mesh[axis] for axis in place.axes)], axis=0)
        for count in distinct(ranks):
            tokens = load.taken(experts=place.experts, ranks=int(count), dropless=dropless)
            most = np.where(ranks == count, tokens.max(), most)
            mean = np.where(ranks == count, tokens.mean(), mean)
    return np.stack([most, mean])


def members_of(axes: tuple[str, ...], mesh: Mesh) -> Integers:
    """Return the number of each rank among those of its group over `axes`."""
    coordinates = mesh.coordinates()
    member = np.zeros(mesh.ranks, dtype=np.int64)
    for axis in axes:
        member = member * mesh.degree(axis) + coordinates[axis]
    return member
