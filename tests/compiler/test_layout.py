"""The table of layout changes and the sizes that they move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.lowering.layout import PARTIAL, Layout, conversions
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
