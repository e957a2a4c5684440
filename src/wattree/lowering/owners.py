"""Loads of ranks over the mean: of experts that are not equally popular, of owners of operators.

Tables are shared out so that bytes, lookups and results pile up nowhere: the largest first, each
to the rank whose largest load stays smallest. With one measure this is
Graham's rule of the longest first ("Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl.
Math. 17(2), 1969).
Any other operator lies on the first rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Floats, Integers
from wattree.distinct import distinct
from wattree.errors import StrategyError
from wattree.lowering.block import ModelProgram
from wattree.lowering.spread import OwnedOperator, TokenLoad
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
    return _levels(tokens, tokens, place.axes, mesh)


def _levels(
    tokens: Floats, sent: Floats, axes: tuple[str, ...], mesh: Mesh, **more: Floats
) -> RankLevels:
    """Return the levels of ranks with so much work that send so much.

    Args:
        more: Further fields of `TokenLoad` by rank.
    """
    ports = port_factors(sent)
    rows = np.stack([-tokens, ports, *more.values()], axis=1)
    levels, level = np.unique(rows, axis=0, return_inverse=True)
    count, rest = len(levels), zip(more, levels[:, 2:].T, strict=True)
    return RankLevels(
        load=TokenLoad(
            tokens=-levels[:, 0],
            ports=levels[:, 1].copy(),
            busiest=np.full(count, float(ports.max())),
            leader=np.zeros(count, dtype=np.int64),
            **{name: column.copy() for name, column in rest},
        ),
        of_rank=level.ravel()[members_of(axes, mesh)],
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


class Shares(NamedTuple):
    """Load of each rank of the owners' axes over the mean, `(ranks,)` each.

    Attributes:
        lookups: Work: elements that samples read.
        vectors: What is sent: elements of results.
        owner: Rank of each operator, `(operators,)`.
    """

    lookups: Floats
    vectors: Floats
    held: Floats
    owner: Integers


def owners_of(operators: Sequence[OwnedOperator], ranks: int) -> Integers:
    """Return the rank of each operator."""
    weights = np.array([(o.elements, o.lookups, o.vectors) for o in operators]).reshape(-1, 3)
    parts = weights / np.maximum(weights.sum(axis=0), 1e-300)
    owner = np.zeros(len(operators), dtype=np.int64)
    loads = np.zeros((ranks, 3))
    for index in np.argsort(-parts.max(axis=1), kind="stable"):
        if operators[index].shared_out:
            owner[index] = np.argmin((loads + parts[index]).max(axis=1))
        loads[owner[index]] += parts[index]
    return owner


def shares_of(operators: Sequence[OwnedOperator], ranks: int) -> Shares:
    """Return the work, the results and the parameters of each rank, over the mean."""
    owner = owners_of(operators, ranks)
    loads = [(o.lookups, o.vectors, o.elements) for o in operators]
    lookups, vectors, held = (
        _over_mean(np.bincount(owner, weights=load, minlength=ranks))
        for load in zip(*loads, strict=True)
    )
    return Shares(lookups, vectors, held, owner)


def _over_mean(values: NDArray[np.generic]) -> Floats:
    amounts = values.astype(np.float64)
    mean = amounts.mean()
    return np.asarray(amounts / mean if mean > 0 else np.ones_like(amounts))


def first_rank_levels(axes: tuple[str, ...], mesh: Mesh) -> RankLevels:
    """Return two levels: the first rank of each group, which owns everything, and the rest."""
    ranks = mesh.size(axes)
    shares = np.zeros(ranks)
    shares[0] = ranks
    ports = port_factors(shares)
    return RankLevels(
        load=TokenLoad(
            tokens=shares[:2],
            ports=ports[:2],
            busiest=np.full(min(ranks, 2), float(ports.max())),
            leader=np.zeros(min(ranks, 2), dtype=np.int64),
            vectors=shares[:2],
            held=shares[:2],
            first=(shares[:2] > 0).astype(np.float64),
        ),
        of_rank=np.minimum(members_of(axes, mesh), 1),
    )


def owner_levels(program: ModelProgram, mesh: Mesh) -> RankLevels | None:
    """Return the levels of the ranks of `mesh` by owned operators; None if nothing is owned.

    Raises:
        StrategyError: Operators are owned over different axes, so no rank has most of all,
            tables are combined with other owned operators, which are on the first rank, or experts
            are split too, of which every rank has as many.
    """
    operators = program.owned
    if not operators:
        return None
    if program.expert_places:
        raise StrategyError(
            {
                "strategy.tree": f"{operators[0].path} has an owner and experts are split over "
                "ranks; expected one of both"
            }
        )
    if len({(o.axes, o.shared_out) for o in operators}) > 1:
        raise StrategyError(
            {
                "strategy.tree": "operators have their owners among different axes, or tables "
                "with operators that the first rank has; expected one kind over one set of axes"
            }
        )
    axes = operators[0].axes
    shares = shares_of(operators, mesh.size(axes))
    lookups, vectors, held, _ = shares
    return _levels(lookups, vectors, axes, mesh, vectors=vectors, held=held)
