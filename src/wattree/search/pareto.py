"""The exact Pareto front of two minimized objectives."""

from __future__ import annotations

import numpy as np

from wattree.arrays import Floats, Integers


def pareto_front(first: Floats, second: Floats) -> Integers:
    """Return the indices of Pareto-optimal points, by rising `first`.

    A point is beaten if another is at most as large in both and smaller in one. Of equal points
    the one with the lowest index stays.

    Args:
        first: One objective, shape `(n,)`, finite.
        second: The other, likewise.
    """
    order = np.lexsort((np.arange(len(first)), second, first))
    ranked = second[order]
    lowest_before = np.concatenate(([np.inf], np.minimum.accumulate(ranked)[:-1]))
    return np.asarray(order[ranked < lowest_before[: len(ranked)]])
