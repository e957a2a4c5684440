"""Ranks as a grid of axes, the last of which neighbours in rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGrid:
    """The positions of ranks on the mesh.

    Attributes:
        degrees: Axis → degree, the outermost first.
    """

    degrees: Mapping[str, int]

    def index(self, rank: int, axes: Iterable[str]) -> int:
        """Return a rank's number along some axes, counted row by row."""
        wanted = set(axes)
        places = np.unravel_index(rank, tuple(self.degrees.values()))
        found = 0
        for (axis, degree), place in zip(self.degrees.items(), places, strict=True):
            if axis in wanted:
                found = found * degree + int(place)
        return found

    def groups(self, axes: Iterable[str]) -> list[list[int]]:
        """Return the ranks that differ along `axes` alone, group by group, each ascending."""
        wanted = set(axes)
        grid = np.arange(math.prod(self.degrees.values())).reshape(tuple(self.degrees.values()))
        names = list(self.degrees)
        fixed = [place for place, name in enumerate(names) if name not in wanted]
        free = [place for place, name in enumerate(names) if name in wanted]
        size = math.prod(self.degrees[names[place]] for place in free)
        rows: list[list[int]] = grid.transpose(*fixed, *free).reshape(-1, size).tolist()
        return rows

    def group_of(self, rank: int, axes: Iterable[str]) -> list[int]:
        """Return the ranks that differ from a rank along `axes` alone, itself among them."""
        return next(row for row in self.groups(list(axes)) if rank in row)
