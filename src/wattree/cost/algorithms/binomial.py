"""Binomial trees of whole messages: each step doubles the number of ranks that have the data."""

from __future__ import annotations

import numpy as np

from wattree.cost.algorithms.messages import MessageSchedule, Round, round_of
from wattree.cost.algorithms.registry import Call, algorithm


@algorithm("binomial", "broadcast", "reduce", "gather", "scatter")
def binomial(call: Call) -> MessageSchedule:
    """Return `ceil(log2 n)` steps; broadcast and reduce move all of `S` in each [1].

    In gather and scatter an edge carries the parts of the ranks below it, `(n - 1) / n S` in all
    along the longest way.

    References:
        [1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
            Operations in MPICH", IJHPCA 19(1), 2005, doi:10.1177/1094342005051521.
    """
    n = call.group.ranks
    order = np.concatenate(call.group.members())
    order = np.roll(order, -int(np.flatnonzero(order == call.root)[0]))
    outward = call.kind in {"broadcast", "scatter"}
    whole = call.kind in {"broadcast", "reduce"}
    rounds: list[Round] = []
    for bit in range((n - 1).bit_length()):
        span = 1 << bit
        child = np.arange(span, n, 2 * span)
        below = np.minimum(child + span, n) - child
        ends = (order[child - span], order[child])
        sender, receiver = ends if outward else ends[::-1]
        rounds.append(
            round_of(
                sender,
                receiver,
                first=0 if whole else child,
                count=n if whole else below,
                period=n,
                reduces=call.kind == "reduce",
            )
        )
    return call.schedule("binomial", order, tuple(reversed(rounds) if outward else rounds))
