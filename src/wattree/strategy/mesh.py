"""Ranks as a named grid."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattree.arrays import Integers
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
    """Named axes with their degrees, outermost first; ranks next to each other on the last axis.

    Attributes:
        axes: `(name, degree)` pairs. Absent axes have degree 1.
        stage_axis: Name of the axis whose ranks are the stages of a pipeline.
        name: What the tree calls it; empty where it is the only one.
        stages_before: Stages of other meshes that come first in the pipeline.
        all_stages: Stages of all meshes; None where it is the only one.
    """

    axes: tuple[tuple[str, int], ...]
    stage_axis: str = STAGES
    name: str = ""
    stages_before: int = 0
    all_stages: int | None = None

    def __post_init__(self) -> None:
        place = f"strategy.meshes.{self.name}.mesh" if self.name else "strategy.mesh"
        misfits = {
            f"{place}.{name}": "is no name of an axis; start with a letter, go on with "
            "letters, digits, '_' and '-'"
            for name, _ in self.axes
            if not _NAME.fullmatch(name)
        }
        misfits |= {
            f"{place}.{name}": f"degree {degree!r} is not a whole number of 1 or more"
            for name, degree in self.axes
            if not isinstance(degree, int) or isinstance(degree, bool) or degree < 1
        }
        if len({name for name, _ in self.axes}) != len(self.axes):
            misfits[place] = "an axis is named twice"
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
        """Number of pipeline stages on its ranks."""
        return self.degree(self.stage_axis)

    @property
    def pipeline(self) -> int:
        """Number of stages of the whole pipeline, including those of other meshes."""
        return self.stages if self.all_stages is None else self.all_stages

    @property
    def stage_numbers(self) -> range:
        """Numbers of its stages in the pipeline."""
        return range(self.stages_before, self.stages_before + self.stages)

    def degree(self, axis: str) -> int:
        """Return the degree of `axis`, 1 if the mesh does not name it."""
        return dict(self.axes).get(axis, 1)

    def size(self, axes: Iterable[str]) -> int:
        """Return the product of the degrees of `axes`."""
        return math.prod(self.degree(axis) for axis in axes)

    def coordinates(self) -> dict[str, Integers]:
        """Return each rank's place on every axis, shape `(ranks,)` each."""
        shape = tuple(degree for _, degree in self.axes)
        grid = np.unravel_index(np.arange(self.ranks), shape) if shape else ()
        return {name: np.asarray(index) for (name, _), index in zip(self.axes, grid, strict=True)}

    def index(self, rank: int, axes: Iterable[str]) -> int:
        """Return a rank's number along some axes, counted row by row."""
        wanted, places, found = set(axes), self.coordinates(), 0
        for name, degree in self.axes:
            if name in wanted:
                found = found * degree + int(places[name][rank])
        return found

    def groups(self, axes: Iterable[str]) -> Integers:
        """Return the process groups along `axes`, shape `(groups, group size)`, ranks ascending."""
        inside = set(axes)
        ranks = np.arange(self.ranks).reshape([degree for _, degree in self.axes] or [1])
        order = [i for i, (name, _) in enumerate(self.axes) if name not in inside]
        order += [i for i, (name, _) in enumerate(self.axes) if name in inside]
        moved = ranks.transpose(order) if self.axes else ranks
        return moved.reshape(-1, self.size(inside))


def in_line(meshes: Sequence[Mesh]) -> tuple[Mesh, ...]:
    """Return meshes with stage numbers: the stages of each mesh follow those before."""
    if len(meshes) == 1:
        return (replace(meshes[0], name="", stages_before=0, all_stages=None),)
    total, before, found = sum(mesh.stages for mesh in meshes), 0, []
    for mesh in meshes:
        found.append(replace(mesh, stages_before=before, all_stages=total))
        before += mesh.stages
    return tuple(found)
