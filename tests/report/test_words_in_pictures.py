"""Words in pictures: plain numbers, names that are text, and labels that lie apart."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

from tests.validation.test_table import ENTRIES
from wattree.report.plots import Plot
from wattree.report.plots.bars import draw_front
from wattree.report.plots.named import NamedSpot, rows_above
from wattree.report.plots.of_runs import step_plot
from wattree.report.plots.of_validation import validation_plots
from wattree.report.words import COMPONENT_WORDS, part_in_words
from wattree.validation import Validation


def test_axes_of_measured_and_predicted_have_plain_numbers() -> None:
    """Two seconds, not 2 × 10⁰."""
    rows = validation_plots(Validation(scored=ENTRIES))[0].svg()

    assert ">2<" in rows
    assert "mathdefault" not in rows
    assert "×" not in rows


def test_names_that_look_like_formulas_are_text() -> None:
    """Files and kernels may be called anything; `$` begins no formula."""
    name = "$\\frac$"

    assert name in step_plot({name: {"compute": 1.0, "a_$^{$b": 2.0}}).svg()


def test_numbers_in_a_picture_keep_their_digits() -> None:
    """Coordinates are shortened, and words are not."""
    plot = step_plot({"short": {"compute": 0.0548}, "long": {"compute": 17.6}})

    assert "0.0548 s" in plot.svg()


def _front(points: list[tuple[str, float, float]], always: int = 1) -> str:
    """Return a picture of points by time and energy."""
    titles = {"x_title": "time [s]", "y_title": "energy [MJ]"}
    draw = partial(draw_front, points=points, always=always, **titles)
    return Plot(name="front", title="", summary="", draw=draw).svg()


def test_labels_of_strategies_that_are_close_lie_apart() -> None:
    """Numbers over each other are read by no one."""
    text = _front([("first", 55.9, 2.68), ("second", 56.0, 2.69), ("third", 72.5, 3.5)])
    found = re.findall(r'x="([\d.]+)" y="([\d.]+)"[^>]*>(first|second|third)<', text)
    places = {name: (float(x), float(y)) for x, y, name in found}
    across, up = (abs(a - b) for a, b in zip(places["first"], places["second"], strict=True))

    assert len(places) == 3
    assert across > 30 or up > 8.5


def test_points_without_room_for_a_label_have_none_but_those_that_matter() -> None:
    """A heap of a hundred clusters: the best by each objective are named in any case."""
    heap = [(f"#{number}", 1.0 + 1e-4 * number, 1.0) for number in range(100)]
    text = _front([*heap, ("", 2.0, 2.0)], always=30)
    written = [name for name, _, _ in heap if f">{name}<" in text]

    assert written[:30] == [name for name, _, _ in heap[:30]]
    assert len(written) < 60


@pytest.mark.parametrize("is_narrow", [False, True])
def test_names_of_parts_lie_apart_and_on_no_line(*, is_narrow: bool) -> None:
    """Thin parts at the end of a bar, where names have least room."""
    parts = dict.fromkeys(COMPONENT_WORDS, 1.0)
    spots = [NamedSpot(part_in_words(name), 50 + 2.0 * i, 0) for i, name in enumerate(parts)]
    found = []

    def draw(axes: Any) -> None:
        axes.set_xlim(0.0, 110.0)
        axes.figure.draw_without_rendering()
        found.append(rows_above(axes, spots))

    Plot(name="names", title="", summary="", draw=draw).svg(is_narrow=is_narrow)

    assert found[0].is_clear
    assert found[0].rows <= len(spots)
