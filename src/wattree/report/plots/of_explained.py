"""Pictures of a run and its prediction: both steps by class, and the differences."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from wattree.report.plots.figure import INK, SERIES, Plot, label_end, time_unit
from wattree.report.plots.of_runs import step_plot
from wattree.report.words import part_in_words

if TYPE_CHECKING:
    from wattree.learn.explain import Explanation


#: Ranks that are drawn.
_RANKS: Final = 16


def explained_plots(found: Explanation) -> list[Plot]:
    """Return the pictures."""
    steps = {
        "predicted": {each.name: each.predicted_s for each in found.classes},
        "measured": {each.name: each.measured_s for each in found.classes},
    }
    ranks = {f"rank {each.rank}": dict(each.classes_s) for each in found.ranks[:_RANKS]}
    # One color for a class in both pictures.
    known = tuple(
        dict.fromkeys([*steps["predicted"], *(name for r in ranks.values() for name in r)])
    )
    differences = {
        part_in_words(each.name): each.difference_s for each in found.classes if each.difference_s
    }
    return [
        step_plot(steps, "Where the step goes, predicted and measured", known),
        Plot(
            name="differences",
            title="Difference of measured and predicted time, by class",
            summary="Bars to the right: measured longer than predicted.",
            draw=partial(_draw_differences, differences=differences),
            height_in=1.0 + 0.32 * max(len(differences), 1),
        ),
        replace(step_plot(ranks, "Where the step of each rank goes", known), name="ranks"),
    ]


def _draw_differences(axes: Any, differences: dict[str, float]) -> None:
    largest = max(map(abs, differences.values()), default=1.0)
    scale, unit = time_unit(largest)
    values = [value / scale for value in differences.values()]
    colors = [SERIES[5] if value > 0 else SERIES[0] for value in values]
    axes.barh(list(differences), values, color=colors, height=0.6)
    for row, value in enumerate(values):
        label_end(axes, value, row, f"{value:+.3g}")
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set(xlabel=f"difference [{unit}]")
