"""The points of a study as a table: the best first, infeasible ones with their reasons."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wattree.design import Axis, Outcome, Results
from wattree.units import format_quantity, format_time

__all__ = ["show_points", "shown_value"]

#: Points of a table that a terminal shows; files have them all.
_MOST_ROWS = 12
#: Total → its head and how a number of it is written.
_TOTALS = {
    "time_s": ("time", format_time),
    "energy_j": ("energy", lambda value: format_quantity(value / 3600.0, "Wh")),
    "cost_usd": ("cost", lambda value: f"{value:,.0f} USD"),
    "carbon_gco2e": ("carbon", lambda value: format_quantity(value, "gCO2e")),
    "power_w": ("power", lambda value: format_quantity(value, "W")),
    "capital_usd": ("capital", lambda value: f"{value:,.0f} USD"),
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
    for axis in study.axes:
        table.add_column(Text(axis.label))
    for name in totals:
        table.add_column(_TOTALS[name][0], justify="right")
    table.add_column("strategy", overflow="fold")
    for index in order[:rows].tolist():
        table.add_row(*map(Text, _cells(results.outcomes[index], results, totals)))
    if len(order):
        console.print(table)
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
    named = len(outcome.workloads) > 1
    strategies = [
        f"{entry.workload}: {entry.strategy}" if named else entry.strategy
        for entry in outcome.workloads
    ]
    return [*values, *numbers, "; ".join(strategies)]


def _show_reasons(results: Results, console: Console) -> None:
    """Print why points are not feasible, each reason's kind once with an example."""
    kinds: dict[str, list[Outcome]] = {}
    for outcome in results.outcomes:
        if not outcome.feasible:
            kinds.setdefault(str(outcome.reason).partition(":")[0], []).append(outcome)
    for kind, outcomes in sorted(kinds.items(), key=lambda item: -len(item[1])):
        console.print(f"{len(outcomes):,} x {kind}; for one: {outcomes[0].reason}", markup=False)
