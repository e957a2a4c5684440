"""Owner ranks of whole operators, and the load of each rank over the mean.

Tables are shared out so that neither bytes nor lookups pile up: the largest first, each to the rank
that is left with the least of whichever it has more of. With one measure this is Graham's rule of
the longest first ("Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17(2), 1969).
Any other operator lies on the first rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Floats, Integers
from wattree.errors import StrategyError
from wattree.lowering.block import ModelProgram
from wattree.lowering.program import TokenLoad
from wattree.lowering.spread import OwnedOperator
from wattree.lowering.token_load import RankLevels, members_of, port_factors
from wattree.strategy import Mesh


class Shares(NamedTuple):
    """Load of each rank of the owners' axes over the mean, `(ranks,)` each.

    Attributes:
        lookups: Work: elements that samples read.
        owner: Rank of each operator, `(operators,)`.
    """

    lookups: Floats
    held: Floats
    owner: Integers


def owners_of(operators: Sequence[OwnedOperator], ranks: int) -> Integers:
    """Return the rank of each operator."""
    weights = np.array([(o.elements, o.lookups) for o in operators]).reshape(-1, 2)
    parts = weights / np.maximum(weights.sum(axis=0), 1e-300)
    owner = np.zeros(len(operators), dtype=np.int64)
    loads = np.zeros((ranks, 2))
    for index in np.argsort(-parts.max(axis=1), kind="stable"):
        if operators[index].shared_out:
            owner[index] = np.argmin((loads + parts[index]).max(axis=1))
        loads[owner[index]] += parts[index]
    return owner


def shares_of(operators: Sequence[OwnedOperator], ranks: int) -> Shares:
    """Return the work and the parameters of each rank, over the mean."""
    owner = owners_of(operators, ranks)
    work = np.bincount(owner, weights=[o.lookups for o in operators], minlength=ranks)
    held = np.bincount(owner, weights=[o.elements for o in operators], minlength=ranks)
    return Shares(_over_mean(work), _over_mean(held), owner)


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
    ports = port_factors(shares.lookups)
    rows = np.stack([-shares.lookups, ports, shares.held], axis=1)
    levels, level = np.unique(rows, axis=0, return_inverse=True)
    count = len(levels)
    return RankLevels(
        load=TokenLoad(
            tokens=-levels[:, 0],
            ports=levels[:, 1].copy(),
            busiest=np.full(count, float(ports.max())),
            leader=np.zeros(count, dtype=np.int64),
            held=levels[:, 2].copy(),
        ),
        of_rank=level.ravel()[members_of(axes, mesh)],
    )
