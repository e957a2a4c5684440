"""The points of a study as a table: the best first, infeasible ones with their reasons."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wattree.design import Outcome, Results
from wattree.design.answers import Sweep, sweep_of
from wattree.design.results import OBJECTIVE_TOTALS
from wattree.report.design.words import MEASURES, SHORT, amount, level

#: Points of a table that a terminal shows; files have them all.
_MOST_ROWS = 12


def show_points(results: Results, console: Console, *, rows: int = _MOST_ROWS) -> None:
    """Print the best points of a study by its first objective, and the best by each other one."""
    study, feasible, sweep = results.study, results.feasible, sweep_of(results)
    console.print(study.title or study.name, markup=False)
    for note in study.notes:
        console.print(f"note: {note}", markup=False)
    order = np.argsort(results.objective(study.objectives[0]), kind="stable")
    order = order[feasible[order]] if len(order) else order
    totals = [name for name in SHORT if not np.isnan(results.total(name)).all()]
    least = {o: best for o in study.objectives if (best := results.best(o)) is not None}
    listed = {*order[:rows].tolist(), *least.values()}
    shown = [index for index in order.tolist() if index in listed]
    table = Table(box=None, pad_edge=False)
    table.add_column("point", justify="right")
    for axis in study.axes:
        table.add_column(Text(axis.label))
    cells = {index: _cells(sweep, index, totals) for index in shown}
    for place, name in enumerate(totals, start=len(study.axes)):
        # A figure is never cut, whatever has to go.
        width = max((len(row[place]) for row in cells.values()), default=0)
        table.add_column(SHORT[name], justify="right", min_width=width)
    for index, row in cells.items():  # numbered as on the page
        table.add_row(f"#{index + 1}", *map(Text, row))
    if len(order):
        console.print(table)
        _show_strategies({n: results.outcomes[n] for n in shown}, console)
    if len(least) > 1:
        named = (f"{MEASURES[OBJECTIVE_TOTALS[o]]} at #{n + 1}" for o, n in least.items())
        console.print(f"least {', '.join(named)}", markup=False)
    finished, there = len(results), results.points or len(results)
    console.print(
        f"{finished:,} of {there:,} points finished, {int(feasible.sum()):,} feasible"
        + (f", {len(shown)} shown" if len(order) > len(shown) else "")
    )
    if results.out_of_time:
        minutes = results.study.sampler.minutes
        console.print(f"the study's {minutes:g} minutes were over: run again to go on")
    _show_reasons(results, console)


def _cells(sweep: Sweep, point: int, totals: list[str]) -> list[str]:
    values = [level(axis, axis.value(point)) for axis in sweep.axes]
    return [*values, *(amount(name, float(sweep.measures[name][point])) for name in totals)]


def _show_strategies(outcomes: Mapping[int, Outcome], console: Console) -> None:
    """Print under which strategies the points of the table are trained, each once."""
    points: dict[str, list[str]] = {}
    for index, outcome in outcomes.items():
        named = len(outcome.workloads) > 1
        for entry in outcome.workloads:
            notes = "".join(f" ({note})" for note in entry.notes)
            words = f"{entry.workload}: {entry.strategy}" if named else entry.strategy
            points.setdefault(f"{words}{notes}", []).append(f"#{index + 1}")
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
