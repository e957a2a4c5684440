"""Changes of layout are those of a table that was written by hand, and the sizes that they move."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.lowering.layout import OWNED, PARTIAL, Layout, conversions
from wattree.lowering.program import LocalSize, Scale

WHOLE = 840.0
#: Axes with different degrees, so that a wrong one shows.
DEGREES = {"dp": 2.0, "tp": 4.0, "cp": 5.0}
SCALE = Scale(
    micro_batch=np.ones(1),
    sequence=1.0,
    degrees={axis: np.array([degree]) for axis, degree in DEGREES.items()},
    batch_axes=(),
)


def held(layout: Layout) -> LocalSize:
    """Return what a rank holds of a tensor of `WHOLE` elements."""
    return LocalSize(WHOLE).over(tuple(axis for axis, at in layout.items() if at != PARTIAL))


def changed(have: Layout, want: Layout) -> list[tuple[str, tuple[str, ...], float]]:
    """Return (kind, axes, buffer elements) of the collectives between two layouts."""
    steps, _ = conversions(held(have), have, want)
    return [(step.kind.value, step.axes, float(SCALE.value(step.size)[0])) for step in steps]


@pytest.mark.parametrize(
    ("have", "want", "expected"),
    [
        ({}, {}, []),
        ({"tp": 1}, {"tp": 1}, []),
        ({}, {"tp": 0}, []),  # a local slice
        ({"tp": PARTIAL}, {}, [("all_reduce", ("tp",), WHOLE)]),
        ({"tp": PARTIAL}, {"tp": 1}, [("reduce_scatter", ("tp",), WHOLE)]),
        ({"tp": 1}, {}, [("all_gather", ("tp",), WHOLE)]),
        ({"tp": 1}, {"tp": 0}, [("all_to_all", ("tp",), WHOLE / 4)]),
        # what another axis splits stays split: buffers are that much smaller
        ({"tp": PARTIAL, "dp": 0}, {"dp": 0}, [("all_reduce", ("tp",), WHOLE / 2)]),
        ({"tp": 1, "dp": 0}, {"dp": 0}, [("all_gather", ("tp",), WHOLE / 2)]),
        # axes that change alike do so together
        ({"dp": 0, "tp": 0}, {}, [("all_gather", ("dp", "tp"), WHOLE)]),
        # reduce first, it shrinks what is gathered
        (
            {"tp": PARTIAL, "dp": 0},
            {"tp": 1},
            [("reduce_scatter", ("tp",), WHOLE / 2), ("all_gather", ("dp",), WHOLE / 4)],
        ),
    ],
)
def test_each_change_of_layout_has_its_collective(
    have: Layout, want: Layout, expected: list[tuple[str, tuple[str, ...], float]]
) -> None:
    """Nothing else decides about collectives."""
    assert changed(have, want) == expected


layouts = st.dictionaries(st.sampled_from(sorted(DEGREES)), st.integers(PARTIAL, 2))
whole_layouts = st.dictionaries(st.sampled_from(sorted(DEGREES)), st.integers(0, 2))


@given(have=layouts, want=whole_layouts)
def test_a_change_ends_with_what_the_new_layout_holds(have: Layout, want: Layout) -> None:
    """Shards sum to the whole whatever the way there."""
    _, size = conversions(held(have), have, want)

    assert float(SCALE.value(size)[0]) == pytest.approx(float(SCALE.value(held(want))[0]))


@given(layout=layouts)
def test_no_change_moves_nothing(layout: Layout) -> None:
    """A tensor that lies as it is wanted stays there."""
    assert changed(layout, layout) == []


def by_table(have: Layout, want: Layout) -> list[tuple[str, tuple[str, ...], float]]:
    """Return the collectives of the table: kind by kind, all axes of a kind together."""
    kinds: dict[str, list[str]] = {}
    axes = [*have, *(axis for axis in want if axis not in have)]
    for axis in axes:
        before, after = have.get(axis), want.get(axis)
        if before != after:
            kind = (
                "slice"
                if before is None
                else ("all_reduce" if after is None else "reduce_scatter")
                if before == PARTIAL
                else ("all_gather" if after is None else "all_to_all")
            )
            kinds.setdefault(kind, []).append(axis)
    size, found = held(have).over(tuple(kinds.get("slice", ()))), []
    for kind in ("reduce_scatter", "all_reduce", "all_to_all", "all_gather"):
        if kind in kinds:
            over = tuple(kinds[kind])
            after_size = size.without(over) if kind == "all_gather" else size
            found.append((kind, over, float(SCALE.value(after_size)[0])))
            size = size.over(over) if kind == "reduce_scatter" else after_size
    return found


def test_the_cheapest_changes_are_those_of_the_table() -> None:
    """All changes of two axes over two dims and owners, and 300 of three axes over three."""
    random, places = Random(5), (None, OWNED, PARTIAL, 0, 1, 2)
    ends = [place for place in places if place != PARTIAL]
    cases = list(product(product(places[:-1], repeat=2), product(ends[:-1], repeat=2)))
    cases += [(random.choices(places, k=3), random.choices(ends, k=3)) for _ in range(300)]
    different = []
    for slots in cases:
        have, want = (
            {axis: at for axis, at in zip(DEGREES, end, strict=False) if at is not None}
            for end in slots
        )
        if changed(have, want) != by_table(have, want):
            different.append((have, want))

    assert different == []
