"""Recursive halving and doubling: few steps; partners get nearer, then farther."""

from __future__ import annotations

import numpy as np

from wattree.arrays import Integers
from wattree.cost.algorithms.messages import MessageSchedule, Round, round_of
from wattree.cost.algorithms.registry import REDUCTIONS, Call, algorithm


@algorithm("halving-doubling", *REDUCTIONS)
def halving_doubling(call: Call) -> MessageSchedule:
    """Return `log2 n` steps each for scatter and gather, together `2 (n - 1) / n S` bytes [1, 2].

    Where n is no power of two, the first ranks pair up: one of each pair hands all of its data to
    the other before, and gets the result after.

    References:
        [1] R. Rabenseifner, "Optimization of Collective Reduction Operations", ICCS 2004,
            doi:10.1007/978-3-540-24685-5_1.
        [2] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
            Operations in MPICH", IJHPCA 19(1), 2005, doi:10.1177/1094342005051521.
    """
    order = np.concatenate(call.group.members())
    plan = _Plan(order)
    halving = plan.exchanges(reduces=True)
    doubling = plan.exchanges(reduces=False)
    rounds = {
        "all_reduce": (
            *plan.fold(whole=True, reduces=True),
            *halving,
            *doubling,
            *plan.unfold(whole=True),
        ),
        "reduce_scatter": (
            *plan.fold(whole=True, reduces=True),
            *halving,
            *plan.unfold(whole=False),
        ),
        "all_gather": (
            *plan.fold(whole=False, reduces=False),
            *doubling,
            *plan.unfold(whole=True),
        ),
    }[call.kind]
    return call.schedule("halving-doubling", order, rounds)


class _Plan:
    """The power of two of ranks that takes part, and the chunks of each member."""

    def __init__(self, order: Integers) -> None:
        n = len(order)
        self._n, self._order = n, order
        self._bits = n.bit_length() - 1
        extra = n - (1 << self._bits)
        self._even, self._odd = np.arange(0, 2 * extra, 2), np.arange(1, 2 * extra, 2)
        self._active = order[np.concatenate([self._odd, np.arange(2 * extra, n)])]
        place = np.arange((1 << self._bits) + 1)
        self._bounds = np.where(place <= extra, 2 * place, place + extra)

    def exchanges(self, *, reduces: bool) -> tuple[Round, ...]:
        """Return the halving rounds, from far to near, or the doubling rounds, from near to far."""
        place = np.arange(1 << self._bits)
        rounds = []
        for bit in range(self._bits):
            distance = 1 << bit
            partner = place ^ distance
            # Halving gives away the partner's half, doubling all that one has.
            half = (partner if reduces else place) & -distance
            first, end = self._bounds[half], self._bounds[half + distance]
            rounds.append(
                round_of(
                    self._active,
                    self._active[partner],
                    first=first,
                    count=end - first,
                    period=self._n,
                    reduces=reduces,
                )
            )
        return tuple(reversed(rounds)) if reduces else tuple(rounds)

    def fold(self, *, whole: bool, reduces: bool) -> tuple[Round, ...]:
        """Return what the remaining ranks send before the exchange."""
        return self._pairs(self._even, self._odd, whole=whole, reduces=reduces)

    def unfold(self, *, whole: bool) -> tuple[Round, ...]:
        """Return what the remaining ranks receive after the exchange."""
        return self._pairs(self._odd, self._even, whole=whole, reduces=False)

    def _pairs(
        self, one: Integers, other: Integers, *, whole: bool, reduces: bool
    ) -> tuple[Round, ...]:
        if not len(one):
            return ()
        return (
            round_of(
                self._order[one],
                self._order[other],
                first=0 if whole else self._even,
                count=self._n if whole else 1,
                period=self._n,
                reduces=reduces,
            ),
        )
