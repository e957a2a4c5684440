"""The pictures of a plan: strategies by time and energy, and where both go in the best ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from wattree.report.plots.bars import draw_front
from wattree.report.plots.figure import Plot
from wattree.report.plots.of_runs import run_plots

if TYPE_CHECKING:
    from wattree.search.plan_result import RankedStrategy


#: Strategies whose parts are drawn.
_MOST: Final = 5


def plan_plots(ideas: Sequence[Sequence[RankedStrategy]]) -> list[Plot]:
    """Return the pictures; one of several strategies only where there are several."""
    figures = {
        str(number): idea[0].result.as_json() for number, idea in enumerate(ideas[:_MOST], start=1)
    }
    front = [front_plot(ideas)] if len(ideas) > 1 else []
    return [*front, *(run_plots(figures) if figures else ())]


def front_plot(ideas: Sequence[Sequence[RankedStrategy]]) -> Plot:
    """Return the ranked strategies by step time and energy, the best marked."""
    points = [
        (idea[0].label, idea[0].result.step_time_s, idea[0].result.energy_j.total / 1e3)
        for idea in ideas
    ]
    return Plot(
        name="front",
        title="Time and energy of the ranked strategies",
        summary=f"Numbers are those of the table; 1 is best. It takes {points[0][1]:.3g} s and "
        f"{points[0][2]:.3g} kJ per step.",
        draw=partial(
            draw_front, points=points, x_title="step time [s]", y_title="energy per step [kJ]"
        ),
    )
