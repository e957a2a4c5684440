"""Rings along cables: orders of devices that use no cable twice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["disjoint_cycles"]

Integers = NDArray[np.int64]

#: Steps after which the search keeps the best it has; the nodes there are need far fewer.
_PATIENCE = 200_000


def disjoint_cycles(cables: Integers) -> tuple[tuple[int, ...], ...]:
    """Return as many rings through all devices as can be found, each way round counted.

    NCCL and RCCL look for the same: on DGX-1 with V100 three rings that together use every
    NVLink, on eight fully meshed devices three and a perfect matching left over.

    Args:
        cables: How many cables join each pair, symmetric. Shape `(m, m)`.

    Returns:
        Orders of the positions from 0; empty where no ring goes through all.
    """
    search = _Search(cables)
    search.extend([])
    return tuple(order for cycle in search.best for order in (cycle, (cycle[0], *cycle[:0:-1])))


class _Search:
    """Depth-first, thickest cables first, until no more rings can fit or patience ends."""

    def __init__(self, cables: Integers) -> None:
        self.best: list[tuple[int, ...]] = []
        self._left = cables.tolist()
        self._size = len(cables)
        self._most = int(cables.sum(axis=1).min()) // 2
        self._patience = _PATIENCE

    def extend(self, found: list[tuple[int, ...]]) -> bool:
        """Add rings to those found; true once there can be no more or no more time."""
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
