"""Contents of the report that compares a run with its prediction."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wattree.report.explained_text import classes_table, headline
from wattree.report.html.report_view import Card, ReportView, TableView, view_of
from wattree.report.plots.of_explained import explained_plots
from wattree.report.words import percent
from wattree.units import format_time

if TYPE_CHECKING:
    from wattree.learn.explain import Explanation


def explained_view(found: Explanation) -> ReportView:
    """Return the contents of the report."""
    faults = TableView(
        caption="What takes longer than predicted, and its usual causes",
        head=("what", "lost per step", "evidence", "usual causes"),
        body=[
            (each.title, format_time(each.lost_s), each.evidence, "; ".join(each.causes))
            for each in found.faults
        ],
        numbers=(1,),
    )
    ranks = TableView(
        caption="Ranks",
        head=("rank", "step", "own work", "overlapped communication"),
        body=[
            (str(each.rank), *map(format_time, (each.step_s, each.own_s, each.hidden_s)))
            for each in found.ranks
        ],
        numbers=(1, 2, 3),
    )
    classes = view_of(classes_table(found), "Classes of the step, the largest difference first")
    classes = replace(classes, head=("class", *classes.head[1:]))
    tables = [faults, classes, ranks] if found.faults else [classes, ranks]
    return ReportView(
        answer=_answer(found),
        cards=_cards(found),
        plots=explained_plots(found),
        tables=[table for table in tables if table.body],
        lists={"What the traces do not show": found.notes},
    )


def _answer(found: Explanation) -> str:
    if not found.faults:
        return f"{headline(found)}. Nothing takes longer than predicted by 1 % of the step."
    first = found.faults[0]
    return f"{headline(found)}. Most of it: {first.title} ({format_time(first.lost_s)} per step)."


def _cards(found: Explanation) -> list[Card]:
    slower = found.measured_s / found.predicted_s - 1.0
    cards = [
        Card(
            name="Measured step",
            value=format_time(found.measured_s),
            note=f"{percent(abs(slower))} {'slower' if slower > 0 else 'faster'} than predicted",
        ),
        Card(name="Predicted step", value=format_time(found.predicted_s)),
    ]
    if found.faults:
        first = found.faults[0]
        share = percent(first.lost_s / found.measured_s)
        note = f"{first.title}: {share} of the step"
        cards.append(Card(name="Largest loss", value=format_time(first.lost_s), note=note))
    low, high = map(format_time, found.interval_s)
    cards.append(
        Card(
            name="How sure",
            value="inside the interval" if found.is_expected else "outside the interval",
            note=f"the prediction's 80 % interval is {low} to {high}",
        )
    )
    return cards
