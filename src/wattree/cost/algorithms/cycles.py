"""Link-disjoint rings: orders of devices that use no cable twice."""

from __future__ import annotations

import numpy as np

from wattree.arrays import Integers

#: Steps after which the search keeps the best it has; the nodes there are need far fewer.
_PATIENCE = 200_000


def disjoint_cycles(cables: Integers) -> tuple[tuple[int, ...], ...]:
    """Return as many disjoint rings through all devices as are found, one per direction.

    NCCL and RCCL look for the same: on DGX-1 with V100 three rings that together use every
    NVLink. Where every pair is joined alike, an even number of devices has a matching left over by
    any such rings; there each cable is used by two rings, half of it by each, and none is left.

    Args:
        cables: How many cables join each pair, symmetric. Shape `(m, m)`.

    Returns:
        Orders of the positions from 0; empty where no ring goes through all.
    """
    if _is_even_mesh(cables):
        return _rings_by_turning(len(cables))
    search = _Search(cables)
    search.extend([])
    return tuple(order for cycle in search.best for order in (cycle, (cycle[0], *cycle[:0:-1])))


def _is_even_mesh(cables: Integers) -> bool:
    size = len(cables)
    apart = cables[~np.eye(size, dtype=bool)]
    return size > 2 and size % 2 == 0 and bool(np.all(apart == apart[0])) and bool(apart[0] > 0)


def _rings_by_turning(size: int) -> tuple[tuple[int, ...], ...]:
    """Return rings of which every two neighbours are neighbours in two, each way round counted.

    One device stands in the middle of the circle of the others. A zigzag through the circle meets
    every distance twice, so that its turns meet every pair twice [1].

    References:
        [1] B. Alspach, "The wonderful Walecki construction", Bulletin of the ICA 52, 2008.
    """
    around = size - 1
    steps = np.arange(around)
    zigzag = np.where(steps % 2, -(-steps // 2), -(steps // 2)) % around
    rings = []
    for turn in range(around):
        order = (around, *((zigzag + turn) % around).tolist())
        rings += [order, (order[0], *order[:0:-1])]
    return tuple(rings)


class _Search:
    """Depth-first search, thickest cables first, until no ring fits or the search limit is hit."""

    def __init__(self, cables: Integers) -> None:
        self.best: list[tuple[int, ...]] = []
        self._left = cables.tolist()
        self._size = len(cables)
        self._most = int(cables.sum(axis=1).min()) // 2
        self._patience = _PATIENCE

    def extend(self, found: list[tuple[int, ...]]) -> bool:
        """Add rings to those found; return true when the search is finished or out of time."""
        if len(found) > len(self.best):
            self.best = list(found)
        if len(self.best) >= self._most or self._patience <= 0:
            return True
        return self._walk([0], found)

    def _walk(self, path: list[int], found: list[tuple[int, ...]]) -> bool:
        self._patience -= 1
        if self._patience <= 0:
            return True
        at = path[-1]
        if len(path) == self._size:
            if not self._left[at][0]:
                return False
            return self._with_cable(at, 0, lambda: self.extend([*found, tuple(path)]))
        onward = [other for other in range(self._size) if self._left[at][other] > 0]
        for other in sorted(set(onward) - set(path), key=lambda each: -self._left[at][each]):
            if self._with_cable(at, other, lambda: self._walk([*path, other], found)):  # noqa: B023
                return True
        return False

    def _with_cable(self, one: int, other: int, go_on: object) -> bool:
        self._left[one][other] -= 1
        self._left[other][one] -= 1
        done = bool(go_on())  # type: ignore[operator]
        self._left[one][other] += 1
        self._left[other][one] += 1
        return done
