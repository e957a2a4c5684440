"""The pictures of a study: its points by two objectives, and the steps of the best ones."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from wattree.design.answers import Front, summarize
from wattree.report.design.words import MEASURES, amount
from wattree.report.plots.bars import Bars, draw_front
from wattree.report.plots.figure import Plot, energy_unit
from wattree.report.plots.of_runs import bars_plot, step_plot
from wattree.report.words import joules
from wattree.trace import STAGES
from wattree.units import counted, named_unit

if TYPE_CHECKING:
    from wattree.design import Results

_PREFIXES: Final = ("", "k", "M", "G", "T")
#: A megagram is a tonne, as texts have it.
_TONNES: Final = {"MgCO2e": "tCO2e", "GgCO2e": "ktCO2e", "TgCO2e": "MtCO2e"}
_TIMES: Final = ((86_400.0, "d"), (3600.0, "h"))
#: Points whose steps are drawn.
_MOST: Final = 5


def design_plots(results: Results) -> list[Plot]:
    """Return the pictures; those that would be empty are left out."""
    summary = summarize(results)
    front = summary.front
    if not isinstance(front, Front):
        return []
    best = front.points.tolist()
    found = []
    if len(front.objectives) > 1:
        found.append(_front(results, front))
    several = len(results.study.workloads) > 1
    entries = {
        f"#{point + 1}" + (f" {each.workload}" if several else ""): each
        for point in best[:_MOST]
        for each in results.outcomes[point].workloads
    }
    times = {name: each.time_parts_s for name, each in entries.items() if each.time_parts_s}
    energies = {name: each.energy_by_stage_j for name, each in entries.items()}
    energies = {name: each for name, each in energies.items() if each}
    if times:
        found.append(step_plot(times))
    if energies:
        scale, unit = energy_unit(max(sum(each.values()) for each in energies.values()))
        bars = Bars(
            parts=energies,
            quantity="energy of a step with PUE",
            unit=unit,
            scale=scale,
            known=STAGES,
        )
        found.append(bars_plot("energy", "Where the energy goes", bars, joules))
    return found


def _front(results: Results, front: Front) -> Plot:
    """Return the feasible points by the first two objectives, the Pareto-optimal ones numbered."""
    across, up = front.objectives[:2]
    xs, ys = results.total(across), results.total(up)
    known = np.flatnonzero(np.isfinite(xs) & np.isfinite(ys)).tolist()
    least = {name: results.best(name) for name in results.study.objectives}
    first, *others = front.points.tolist()
    best = dict.fromkeys([first, *(point for point in least.values() if point in known)])
    chosen = list(dict.fromkeys([*best, *others]))
    order = [*chosen, *(point for point in known if point not in set(chosen))]
    (x_scale, x_unit), (y_scale, y_unit) = (
        _unit(name, float(np.nanmax(values))) for name, values in ((across, xs), (up, ys))
    )
    points = [(f"#{p + 1}" if p in chosen else "", xs[p] / x_scale, ys[p] / y_scale) for p in order]
    named = "; ".join(f"least {o}: #{p + 1}" for o, p in least.items() if p is not None)
    return Plot(
        name="front",
        title=f"Clusters by {MEASURES[across]} and {MEASURES[up]}",
        summary=f"{counted(len(known), 'point')}; {_optimal(len(front.points))} in color, numbered "
        f"where there is room ({named}). The first, #{first + 1}, has "
        f"{amount(across, float(xs[first]))} and {amount(up, float(ys[first]))}.",
        draw=partial(
            draw_front,
            points=points,
            x_title=f"{MEASURES[across]} [{x_unit}]",
            y_title=f"{MEASURES[up]} [{y_unit}]",
            always=len(best),
        ),
    )


def _optimal(count: int) -> str:
    return "the Pareto-optimal one is" if count == 1 else f"the {count:,} Pareto-optimal ones are"


def _unit(measure: str, largest: float) -> tuple[float, str]:
    """Return the unit of an axis up to the largest value: its size in SI, and its name."""
    unit = named_unit(measure)
    if unit == "s":
        return next(((size, name) for size, name in _TIMES if largest >= 2 * size), (1.0, "s"))
    power = min(max(int(np.log10(max(largest, 1.0)) // 3), 0), len(_PREFIXES) - 1)
    name = f"{_PREFIXES[power]}{unit}"
    return 1000.0**power, _TONNES.get(name, name)
