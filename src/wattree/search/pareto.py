"""The exact Pareto front of minimized objectives."""

from __future__ import annotations

import numpy as np

from wattree.arrays import Floats, Integers


def undominated(costs: Floats) -> Integers:
    """Return the Pareto-optimal rows by rising first column; of equal rows the first.

    A row is beaten if another is at most as large in every column and smaller in one. Each round
    keeps one row for good and drops all that it beats, so there are as many rounds as rows kept,
    each over what is left.

    Args:
        costs: Shape `(n, objectives)`, finite.
    """
    order = np.lexsort((np.arange(len(costs)), *costs.T[::-1]))
    kept = []
    while len(order):
        kept.append(order[0])
        rest = order[1:]
        order = rest[(costs[rest] < costs[order[0]]).any(axis=1)]
    return np.asarray(kept, dtype=np.int64)
