"""Ranks as a named grid."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.errors import StrategyError

#: Axes of the presets, outermost first: the last one lies closest in the topology. Meshes written
#: by hand may name theirs otherwise; what an axis is, `roles` reads off the tree.
AXES = ("pp", "dp", "fsdp", "ep", "cp", "tp")
#: Axis of the pipeline stages, where nothing else is said.
STAGES = "pp"
#: What axes may be called: their names are parts of paths and labels.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Named axes with their degrees, outermost first; neighbours on the last one neighbour in rank.

    Attributes:
        axes: `(name, degree)` pairs. Absent axes have degree 1.
        stage_axis: Name of the axis whose ranks are the stages of a pipeline.
    """

    axes: tuple[tuple[str, int], ...]
    stage_axis: str = STAGES

    def __post_init__(self) -> None:
        misfits = {
            f"strategy.mesh.{name}": "is no name of an axis; start with a letter, go on with "
            "letters, digits, '_' and '-'"
            for name, _ in self.axes
            if not _NAME.fullmatch(name)
        }
        misfits |= {
            f"strategy.mesh.{name}": f"degree {degree!r} is not a whole number of 1 or more"
            for name, degree in self.axes
            if not isinstance(degree, int) or isinstance(degree, bool) or degree < 1
        }
        if len({name for name, _ in self.axes}) != len(self.axes):
            misfits["strategy.mesh"] = "an axis is named twice"
        if misfits:
            raise StrategyError(misfits)

    @classmethod
    def of(cls, degrees: Mapping[str, int]) -> Mesh:
        """Return a mesh of `degrees` of the presets' axes, in the order of `AXES`."""
        return cls(axes=tuple((axis, degrees[axis]) for axis in AXES if axis in degrees))

    @property
    def ranks(self) -> int:
        """Number of ranks: the product of the degrees."""
        return math.prod(degree for _, degree in self.axes)

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return self.degree(self.stage_axis)

    def degree(self, axis: str) -> int:
        """Return the degree of `axis`, 1 if the mesh does not name it."""
        return dict(self.axes).get(axis, 1)

    def size(self, axes: Iterable[str]) -> int:
        """Return the product of the degrees of `axes`."""
        return math.prod(self.degree(axis) for axis in axes)

    def coordinates(self) -> dict[str, NDArray[np.int64]]:
        """Return each rank's place on every axis, shape `(ranks,)` each."""
        shape = tuple(degree for _, degree in self.axes)
        grid = np.unravel_index(np.arange(self.ranks), shape) if shape else ()
        return {name: np.asarray(index) for (name, _), index in zip(self.axes, grid, strict=True)}

    def groups(self, axes: Iterable[str]) -> NDArray[np.int64]:
        """Return the process groups along `axes`, shape `(groups, group size)`, ranks ascending."""
        inside = set(axes)
        ranks = np.arange(self.ranks).reshape([degree for _, degree in self.axes] or [1])
        order = [i for i, (name, _) in enumerate(self.axes) if name not in inside]
        order += [i for i, (name, _) in enumerate(self.axes) if name in inside]
        moved = ranks.transpose(order) if self.axes else ranks
        return moved.reshape(-1, self.size(inside))
