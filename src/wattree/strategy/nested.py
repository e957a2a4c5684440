"""Nested meshes: several grids of the same ranks, written as one mesh of finer axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from wattree.strategy.mesh import Mesh
from wattree.strategy.tree import StrategyTree, TreeNode

Axes = Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FineMesh:
    """One mesh of finer axes for several grids of the same ranks.

    Attributes:
        mesh: Axes as fine as all of the grids need.
        axes: Axis of any of the grids → the axes that it is made of, outermost first.
    """

    mesh: Mesh
    axes: Mapping[str, tuple[str, ...]]


def fine_mesh(mesh: Mesh, nested: Sequence[Axes]) -> FineMesh | None:
    """Return a mesh with the axes of grids of the ranks of each of its stages.

    Args:
        nested: Axes of the grids, outermost first; of as many ranks as a stage has.

    Returns:
        None if some grid cuts through an axis of another, so that no axes serve both.
    """
    own = [(axis, degree) for axis, degree in mesh.axes if axis != mesh.stage_axis]
    grids = [own, *nested]
    cuts = sorted({cut for grid in grids for cut in _cuts(grid)})
    if any(after % before for before, after in pairwise(cuts)):
        return None
    parts: dict[str, tuple[tuple[str, int], ...]] = {}
    for axis, (low, high) in _spans(own):
        inner = [cut for cut in cuts if low < cut < high]
        ends = [low, *inner, high]
        degrees = [after // before for before, after in pairwise(ends)]
        names = [axis] if len(degrees) == 1 else [f"{axis}-{n}" for n in range(1, len(ends))]
        parts[axis] = tuple(zip(names, degrees, strict=True))
    axes = tuple(part for axis, degree in mesh.axes for part in parts.get(axis, ((axis, degree),)))
    made = {axis: tuple(name for name, _ in fine) for axis, fine in parts.items()}
    fine = _spans([part for pieces in parts.values() for part in pieces])
    for grid in nested:
        for axis, (low, high) in _spans(grid):
            made[axis] = tuple(name for name, (a, b) in fine if low <= a and b <= high and a < b)
    return FineMesh(mesh=replace(mesh, axes=axes), axes=made)


def _cuts(axes: Axes) -> list[int]:
    """Return the cumulative products of the degrees, outermost axis first, starting at 1."""
    return [prod(degree for _, degree in axes[:count]) for count in range(len(axes) + 1)]


def _spans(axes: Axes) -> list[tuple[str, tuple[int, int]]]:
    """Return each axis with the cumulative degrees before and after it."""
    cuts = _cuts(axes)
    return [(name, (cuts[n], cuts[n + 1])) for n, (name, _) in enumerate(axes)]


def on_fine_axes(
    tree: StrategyTree, axes: Mapping[str, tuple[str, ...]], names: Mapping[str, str]
) -> StrategyTree:
    """Return a tree with its nodes rewritten to the axes of fine meshes.

    Args:
        tree: With axes of any of the grids.
        axes: From `FineMesh`, of all meshes.
        names: Nested mesh → the mesh that has its ranks.
    """

    def fine(given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(part for axis in given for part in axes.get(axis, (axis,)))

    def stored(given: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if given is None else fine(given)

    def node(own: TreeNode) -> TreeNode:
        return replace(
            own,
            compute={dim: fine(given) for dim, given in own.compute.items()},
            memory=replace(
                own.memory,
                parameters=stored(own.memory.parameters),
                gradients=stored(own.memory.gradients),
                optimizer=stored(own.memory.optimizer),
            ),
            mesh=names.get(own.mesh, own.mesh) if own.mesh else None,
        )

    return StrategyTree(nodes={pattern: node(own) for pattern, own in tree.nodes.items()})
