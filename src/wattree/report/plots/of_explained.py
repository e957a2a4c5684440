"""Pictures of a run beside its prediction: both steps by class, and the differences."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from wattree.report.plots.bars import draw_steps
from wattree.report.plots.figure import INK, SERIES, Plot, time_unit

if TYPE_CHECKING:
    from wattree.learn.explain import Explanation


def explained_plots(found: Explanation) -> list[Plot]:
    """Return the pictures."""
    steps = {
        "predicted": {each.name: each.predicted_s for each in found.classes},
        "measured": {each.name: each.measured_s for each in found.classes},
    }
    differences = {each.name: each.difference_s for each in found.classes if each.difference_s}
    return [
        Plot(
            name="classes",
            title="Where the step goes, predicted and measured",
            summary="The table of classes below has the same.",
            draw=partial(draw_steps, steps=steps),
            height_in=2.4,
        ),
        Plot(
            name="differences",
            title="Measured less predicted, by class",
            summary="To the right: longer than predicted.",
            draw=partial(_draw_differences, differences=differences),
            height_in=1.0 + 0.32 * max(len(differences), 1),
        ),
    ]


def _draw_differences(axes: Any, differences: dict[str, float]) -> None:
    largest = max(map(abs, differences.values()), default=1.0)
    scale, unit = time_unit(largest)
    values = [value / scale for value in differences.values()]
    colors = [SERIES[5] if value > 0 else SERIES[0] for value in values]
    axes.barh(list(differences), values, color=colors, height=0.6)
    for row, value in enumerate(values):
        side = "left" if value > 0 else "right"
        axes.annotate(f" {value:+.3g} ", (value, row), va="center", ha=side, fontsize=9)
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set(xlabel=f"difference [{unit}]")
