"""Contents of the report that compares predictions with measurements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table

from wattree.report.html.report_view import Card, ReportView, view_of
from wattree.report.plots.of_validation import validation_plots
from wattree.report.words import percent
from wattree.units import counted
from wattree.validation import ALL_SOURCES, worst
from wattree.validation.score import inside_share
from wattree.validation.table import QUANTITY_TITLES

if TYPE_CHECKING:
    from wattree.validation import Summary, Validation


def validation_view(found: Validation) -> ReportView:
    """Return the contents of the report."""
    whole = {name: sources[ALL_SOURCES] for name, sources in found.summary.items()}
    return ReportView(
        answer=_answer(found, whole),
        cards=[
            *(_card(QUANTITY_TITLES.get(name, name), each) for name, each in whole.items()),
            *_certainty(found),
        ],
        plots=validation_plots(found),
        tables=[view_of(each) for each in found.table().renderables if isinstance(each, Table)],
    )


def _answer(found: Validation, whole: dict[str, Summary]) -> str:
    if not whole:
        return "No row has a prediction and a measurement."
    rows = sum(each.count for each in whole.values())
    skipped = len({each.row.row_id for each in found.scored if each.skipped is not None})
    (largest,) = worst(found.scored, count=1) or (None,)
    words = f"{rows:,} measured values are predicted; "
    words += f"{skipped:,} {'row is' if skipped == 1 else 'rows are'} skipped."
    if largest is None or largest.error is None:
        return words
    row = largest.row
    return f"{words} The largest error is {percent(abs(largest.error))}, of row {row.row_id}."


def _certainty(found: Validation) -> Iterator[Card]:
    share, rows = inside_share(each for each in found.scored if each.counts)
    if share is not None:
        note = f"of {rows:,} measured values are in intervals that should hold 80 %"
        yield Card(name="How sure", value=f"{100 * share:.0f} %", note=note)


def _card(name: str, errors: Summary) -> Card:
    if errors.mean_abs_error is None or errors.median_abs_error is None:
        return Card(
            name=name, value="no prediction", note=f"{counted(errors.skipped, 'row')} skipped"
        )
    return Card(
        name=f"{name}, mean error",
        value=percent(errors.mean_abs_error),
        note=f"median {percent(errors.median_abs_error)}, {counted(errors.count, 'row')}",
    )
