"""The pictures of a plan: strategies by time and energy, and where both go in the best ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from wattree.report.plots.bars import draw_front
from wattree.report.plots.figure import Plot, energy_unit, time_unit
from wattree.report.plots.of_runs import run_plots
from wattree.report.words import quantity
from wattree.units import format_time

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
    results = [idea[0].result for idea in ideas]
    scale_s, seconds = time_unit(max(each.step_time_s for each in results))
    scale_j, joule = energy_unit(max(each.energy_j.total for each in results))
    points = [
        (str(number), each.step_time_s / scale_s, each.energy_j.total / scale_j)
        for number, each in enumerate(results, start=1)
    ]
    best = results[0]
    return Plot(
        name="front",
        title="Time and energy of the ranked strategies",
        summary="Numbers are those of the table. The best, 1, takes "
        f"{format_time(best.step_time_s)} and {quantity(best.energy_j.total, 'J')} per "
        f"{best.timed}.",
        draw=partial(
            draw_front,
            points=points,
            x_title=f"{best.timed} time [{seconds}]",
            y_title=f"energy per {best.timed} with PUE [{joule}]",
        ),
    )
