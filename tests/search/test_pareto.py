"""The front of two objectives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wattree.search.pareto import undominated

POINTS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=40)


def beats(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether `one` is nowhere worse and somewhere better."""
    return one[0] <= other[0] and one[1] <= other[1] and one != other


@given(POINTS)
def test_the_front_is_the_points_that_nothing_beats(points: list[tuple[int, int]]) -> None:
    """The definition, point by point; small whole numbers make ties common."""
    expected = {p for p in points if not any(beats(other, p) for other in points)}

    front = undominated(np.array(points, dtype=float).reshape(-1, 2)).tolist()

    assert {points[index] for index in front} == expected
    assert len(front) == len(expected)  # equal points once
    assert [points[index] for index in front] == sorted(points[index] for index in front)
