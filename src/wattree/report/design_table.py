"""The points of a study as a table: the best first, infeasible ones with their reasons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wattree.design import Axis, Outcome, Results
from wattree.units import format_quantity, format_time

__all__ = ["show_points", "shown_value"]


def _money(value: float) -> str:
    return f"{value:,.0f} USD" if value >= 1000 else f"{value:.3g} USD"


#: Points of a table that a terminal shows; files have them all.
_MOST_ROWS = 12
#: Total → its head and how a number of it is written.
_TOTALS = {
    "time_s": ("time", format_time),
    "energy_j": ("energy", lambda value: format_quantity(value / 3600.0, "Wh")),
    "cost_usd": ("cost", _money),
    "carbon_gco2e": ("carbon", lambda value: format_quantity(value, "gCO2e")),
    "power_w": ("power", lambda value: format_quantity(value, "W")),
    "capital_usd": ("capital", _money),
}


def shown_value(axis: Axis, value: float | str) -> str:
    """Return a value of an axis in its unit."""
    if isinstance(value, str):
        return value
    if axis.scales:
        return f"x{value:g}"
    if isinstance(value, bool):
        return str(value).lower()
    number = f"{value / axis.factor:.6g}" if axis.unit else f"{value:.10g}"
    return f"{number} {axis.unit}" if axis.unit else number


def show_points(results: Results, console: Console, *, rows: int = _MOST_ROWS) -> None:
    """Print the best points of a study by its first objective."""
    study, feasible = results.study, results.feasible
    console.print(study.title or study.name, markup=False)
    for note in study.notes:
        console.print(f"note: {note}", markup=False)
    order = np.argsort(results.objective(study.objectives[0]), kind="stable")
    order = order[feasible[order]] if len(order) else order
    totals = [name for name in _TOTALS if not np.isnan(results.total(name)).all()]
    table = Table(box=None, pad_edge=False)
    table.add_column("#", justify="right")
    for axis in study.axes:
        table.add_column(Text(axis.label))
    for name in totals:
        table.add_column(_TOTALS[name][0], justify="right")
    for number, index in enumerate(order[:rows].tolist(), start=1):
        cells = _cells(results.outcomes[index], results, totals)
        table.add_row(str(number), *map(Text, cells))
    if len(order):
        console.print(table)
        _show_strategies([results.outcomes[index] for index in order[:rows].tolist()], console)
    finished, there = len(results), results.points or len(results)
    console.print(
        f"{finished:,} of {there:,} points finished, {int(feasible.sum()):,} feasible"
        + (f", the best {rows} shown" if len(order) > rows else "")
    )
    _show_reasons(results, console)


def _cells(outcome: Outcome, results: Results, totals: list[str]) -> list[str]:
    values = [shown_value(axis, outcome.point.values[axis.name]) for axis in results.study.axes]
    numbers = [
        _TOTALS[name][1](outcome.totals[name]) if name in outcome.totals else "-" for name in totals
    ]
    return [*values, *numbers]


def _show_strategies(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print under which strategies the points of the table are trained, each once."""
    points: dict[str, list[str]] = {}
    for number, outcome in enumerate(outcomes, start=1):
        named = len(outcome.workloads) > 1
        for entry in outcome.workloads:
            notes = "".join(f" ({note})" for note in entry.notes)
            words = f"{entry.workload}: {entry.strategy}" if named else entry.strategy
            points.setdefault(f"{words}{notes}", []).append(str(number))
    for words, numbers in points.items():
        console.print(f"{', '.join(numbers)}: {words}", markup=False)


def _show_reasons(results: Results, console: Console) -> None:
    """Print why points are not feasible, each reason's kind once with an example."""
    kinds: dict[str, list[Outcome]] = {}
    for outcome in results.outcomes:
        if not outcome.feasible:
            refused = next((e.reason for e in outcome.workloads if not e.feasible), None)
            kind = str(refused or outcome.reason).partition(":")[0]
            kinds.setdefault(kind, []).append(outcome)
    for kind, outcomes in sorted(kinds.items(), key=lambda item: -len(item[1])):
        console.print(f"{len(outcomes):,} x {kind}; for one: {outcomes[0].reason}", markup=False)
