"""Answers of a study for the terminal: a few lines; the page has the rest."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wattree.design import Results
from wattree.design.answers import NoAnswer, StudySummary, summarize
from wattree.design.study import OBJECTIVE_TOTALS
from wattree.report.design.words import (
    MEASURES,
    at_point,
    bottleneck_sentence,
    break_even_sentence,
    comparison_sentence,
    kind_sentence,
    spending_sentence,
    ties_sentence,
    worth_sentence,
)

#: Break-even points and budgets that a terminal shows.
_MOST_LINES = 6


def show_answers(results: Results, console: Console) -> None:
    """Print the answers from a study's points, and reasons for missing answers."""
    summary = summarize(results)
    if not summary.best:
        for name, why in summary.missing.items():
            console.print(
                f"least {MEASURES[name]}: cannot be determined: {why.reason}", markup=False
            )
        return
    _front(summary, console)
    _heading(console, "What limits")
    _pairs(
        console,
        [
            (MEASURES[name], bottleneck_sentence(summary.sweep, found))
            for name, found in summary.bottlenecks.items()
        ],
    )
    if summary.reasons:
        words = MEASURES[summary.reasons[0].measure]
        _heading(console, f"Why it wins ({words}; each kind with the best of all else)")
        for one in summary.reasons:
            console.print(kind_sentence(summary.sweep, one), markup=False)
    first = MEASURES[OBJECTIVE_TOTALS[results.study.objectives[0]]]
    _heading(console, f"Is it worth it ({first}; all else reoptimized)")
    labels = {axis.name: axis.label for axis in summary.sweep.axes}
    _pairs(
        console,
        [
            (labels[name], worth_sentence(summary.sweep, anew))
            for name, (anew, _) in summary.worths.items()
        ],
    )
    _break_evens(summary, console)
    _money(summary, console)


def _front(summary: StudySummary, console: Console) -> None:
    if isinstance(summary.front, NoAnswer):
        console.print(f"Pareto front: cannot be determined: {summary.front.reason}", markup=False)
        return
    names = " and ".join(MEASURES[name] for name in summary.front.objectives)
    count, fit = len(summary.front.points), int(summary.sweep.feasible.sum())
    if len(summary.front.objectives) > 1:
        are = "is" if count == 1 else "are"
        console.print(f"{count:,} of {fit:,} points {are} Pareto-optimal in {names}", markup=False)
    for name in summary.best:
        if ties := ties_sentence(summary, name):
            console.print(f"least {MEASURES[name]}: {ties}", markup=False)


def _break_evens(summary: StudySummary, console: Console) -> None:
    found = [one for one in summary.comparisons if one.anew.crossings]
    if not found:
        return
    _heading(console, "Break-even")
    shown = found[:_MOST_LINES]
    _pairs(
        console,
        [
            (comparison_sentence(summary.sweep, one), break_even_sentence(summary.sweep, one.anew))
            for one in shown
        ],
    )
    if len(found) > len(shown):
        console.print(f"{len(found) - len(shown)} more are in the report")


def _money(summary: StudySummary, console: Console) -> None:
    _heading(console, "The next million")
    if isinstance(summary.spending, NoAnswer):
        console.print(f"cannot be determined: {summary.spending.reason}", markup=False)
        return
    _pairs(
        console,
        [
            (f"from {at_point(summary.sweep, one.base)}", spending_sentence(summary.sweep, one))
            for one in summary.spending[:_MOST_LINES]
        ],
    )


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(text, style="bold", markup=False)


def _pairs(console: Console, pairs: list[tuple[str, str]]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(overflow="fold", max_width=48)
    table.add_column(overflow="fold")
    for left, right in pairs:
        table.add_row(escape(left), escape(right))
    console.print(table)
