"""Contents of a report: an answer, cards, pictures, tables and lists, in this order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattree.report.plots import Plot

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One figure, or one part of the answer.

    Attributes:
        value: With its unit.
        note: Its interval, or what it is a share of.
        bad: It rules the strategy out.
    """

    name: str
    value: str
    note: str = ""
    bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """A table.

    Attributes:
        caption: What it is of.
        head: Names of its columns.
        body: Its rows, as many cells each as `head`.
        numbers: Columns that are aligned to the right, from 0.
        shares: Of each row a share to draw as a bar; none if empty.
    """

    caption: str
    head: Sequence[str]
    body: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()
    shares: Sequence[float] = ()


def view_of(table: Table, caption: str = "") -> TableView:
    """Return a table of a terminal as one of a page; its title is the caption, unless given."""
    from rich.text import Text

    columns = [
        [
            Text.from_markup(cell).plain if isinstance(cell, str) else str(cell)
            for cell in each.cells
        ]
        for each in table.columns
    ]
    return TableView(
        caption=caption or str(table.title or "").strip(),
        head=[str(each.header) for each in table.columns],
        body=list(zip(*columns, strict=True)),
        numbers=[place for place, each in enumerate(table.columns) if each.justify == "right"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    """A report.

    Attributes:
        answer: What a reader in a hurry must know: a sentence, or cards.
        cards, plots, tables: In the order in which they are shown.
        reasons: Why the answer is as it is.
        lists: Heading → lines; those without lines are left out.
        last: Tables below all else.
    """

    answer: str | Sequence[Card]
    plots: Sequence[Plot]
    tables: Sequence[TableView]
    cards: Sequence[Card] = ()
    reasons: Sequence[str] = ()
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)
    last: Sequence[TableView] = ()
