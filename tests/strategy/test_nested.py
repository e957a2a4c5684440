"""Grids of the same ranks become one mesh whose axes serve all of them."""

from __future__ import annotations

from random import Random

import numpy as np

from wattree.strategy import Mesh, fine_mesh


def test_axes_are_cut_where_any_grid_is_cut() -> None:
    """Four times two and two times four: halves, quarters, eighths."""
    mesh = Mesh(axes=(("pp", 3), ("a", 4), ("b", 2)))

    found = fine_mesh(mesh, [(("x", 2), ("y", 4)), (("z", 8),)])

    assert found is not None
    assert found.mesh.axes == (("pp", 3), ("a-1", 2), ("a-2", 2), ("b", 2))
    assert found.axes == {
        "a": ("a-1", "a-2"),
        "b": ("b",),
        "x": ("a-1",),
        "y": ("a-2", "b"),
        "z": ("a-1", "a-2", "b"),
    }


def test_grids_that_cut_through_each_other_have_no_mesh() -> None:
    """Two times three and three times two share no cut."""
    assert fine_mesh(Mesh(axes=(("a", 2), ("b", 3))), [(("x", 3), ("y", 2))]) is None


def test_groups_over_an_axis_are_those_over_its_parts() -> None:
    """Whatever the grids: the same ranks are together."""
    random, checked = Random(5), 0
    while checked < 50:
        grids = [
            tuple(
                (f"{name}{n}", random.choice((1, 2, 3, 4))) for n in range(random.choice((1, 2, 3)))
            )
            for name in ("a", "b")
        ]
        own, other = (Mesh(axes=grid) for grid in grids)
        found = fine_mesh(own, [grids[1]]) if own.ranks == other.ranks > 1 else None
        if found is None:
            continue
        checked += 1
        for mesh in (own, other):
            for axis, _ in mesh.axes:
                groups = found.mesh.groups(found.axes[axis])
                assert np.array_equal(_ordered(groups), _ordered(mesh.groups((axis,))))


def _ordered(groups: np.ndarray) -> np.ndarray:
    return groups[np.argsort(groups[:, 0])]
