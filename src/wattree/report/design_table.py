"""The points of a study as a table: the best first, infeasible ones with their reasons."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wattree.design import Outcome, Results
from wattree.design.answers import Sweep, sweep_of
from wattree.design.study import OBJECTIVE_TOTALS
from wattree.job.offers import NOT_TRIED
from wattree.report.design.basis import left_out
from wattree.report.design.unfit import unfit_lines
from wattree.report.design.words import MEASURES, SHORT, amount, level, named_ties
from wattree.units import counted

#: Points of a table that a terminal shows; files have them all.
_MOST_ROWS = 12
#: Totals in the order in which they are left out of a narrow table.
_LEAST_ASKED = ("carbon_gco2e", "power_w", "capital_usd", "cost_usd", "energy_j")
#: Totals of the whole site, with a word on what they are of.
_AT_SITE = {"energy_j": "", "power_w": "peak "}
#: Columns between two figures.
_GAP = 2


def show_points(results: Results, console: Console, *, rows: int = _MOST_ROWS) -> None:
    """Print the best points of a study by its first objective, and the best by each other one."""
    study, feasible, sweep = results.study, results.feasible, sweep_of(results)
    console.print(study.title or study.name, markup=False)
    for note in study.notes:
        console.print(f"note: {note}", markup=False)
    order = results.ranked(study.objectives[0])
    order = order[feasible[order]] if len(order) else order
    totals = [name for name in SHORT if not np.isnan(results.total(name)).all()]
    least = {o: best for o in study.objectives if (best := results.best(o)) is not None}
    alike = (named_ties(sweep, OBJECTIVE_TOTALS[name], best) for name, best in least.items())
    listed = {*order[:rows].tolist(), *least.values(), *itertools.chain(*alike)}
    shown = [index for index in order.tolist() if index in listed]
    cells = {index: _cells(sweep, index, totals) for index in shown}
    heads = ["point", *(axis.label for axis in study.axes), *(SHORT[name] for name in totals)]
    rows_of = [[f"#{index + 1}", *row] for index, row in cells.items()]  # numbered as on the page
    # Figures are never cut or broken at their unit, whatever has to go; names wrap.
    names = {place for place, axis in enumerate(sweep.axes, 1) if not axis.numeric}
    needs = {
        head: max(_longest_word(head), *(_width(row[place], place in names) for row in rows_of), 0)
        for place, head in enumerate(heads)
    }
    dropped = _too_many(needs, totals, study.objectives, console.width)
    kept = [place for place, head in enumerate(heads) if head not in dropped]
    table = Table(box=None, pad_edge=False)
    for place in kept:
        is_axis = 0 < place <= len(study.axes)
        table.add_column(
            Text(heads[place]),
            justify="left" if is_axis else "right",
            overflow="fold",
            no_wrap=not is_axis,
            min_width=needs[heads[place]],
        )
    for row in rows_of:
        table.add_row(*(Text(row[place]) for place in kept))
    if len(order):
        # What is still too wide the terminal breaks: nothing is cut.
        console.print(table, width=max(console.width, _taken(needs, dropped)), crop=False)
        _show_basis({head for head in heads if head not in dropped}, dropped, console)
        _show_strategies({n: results.outcomes[n] for n in shown}, console)
    if len(least) > 1:
        named = (f"{MEASURES[OBJECTIVE_TOTALS[o]]} at #{n + 1}" for o, n in least.items())
        console.print(f"least {', '.join(named)}", markup=False)
    finished, there = len(results), results.points or len(results)
    console.print(
        f"{finished:,} of {counted(there, 'point')} finished, {int(feasible.sum()):,} feasible"
        + (f", {len(shown)} shown" if len(order) > len(shown) else "")
    )
    if results.out_of_time:
        minutes = results.study.sampler.minutes
        console.print(f"the study's {minutes:g} minutes were over: run again to go on")
    for line in unfit_lines(results):
        console.print(line, markup=False)
    for words in left_out(results):
        console.print(f"{NOT_TRIED.capitalize()}: {words}", markup=False)


def _show_basis(shown: AbstractSet[str], dropped: Sequence[str], console: Console) -> None:
    """Print what the totals of a table include, and which it has no room for."""
    found = [f"{word}{SHORT[name]}" for name, word in _AT_SITE.items() if SHORT[name] in shown]
    lines = [f"{' and '.join(found).capitalize()} with PUE."] if found else []
    lines += [f"Not shown: {', '.join(dropped)}."] if dropped else []
    if lines:
        console.print(" ".join(lines))


def _too_many(
    needs: Mapping[str, int], totals: Sequence[str], objectives: Sequence[str], width: int
) -> list[str]:
    """Return the heads of totals for which a terminal has no room, objectives last.

    The first objective stays.

    Args:
        needs: Head of each column → its least width.
    """
    first, *others = (OBJECTIVE_TOTALS[name] for name in objectives)
    dropped: list[str] = []
    for name in sorted(_LEAST_ASKED, key=lambda name: name in others):
        if _taken(needs, dropped) > width and name in totals and name != first:
            dropped.append(SHORT[name])
    return dropped


def _taken(needs: Mapping[str, int], dropped: Sequence[str]) -> int:
    """Return the least width of a table without some columns."""
    return sum(needs[head] + _GAP for head in needs if head not in dropped) - _GAP


def _width(text: str, wraps: bool) -> int:  # noqa: FBT001 - of one cell
    return _longest_word(text) if wraps else len(text)


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


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
