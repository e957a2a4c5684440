"""Contents of a report: an answer, cards, pictures, tables and lists, in this order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wattree.report.html.card import Card
from wattree.report.html.table_view import TableView
from wattree.report.plots import Plot


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    """A report.

    Attributes:
        answer: What a reader in a hurry must know.
        cards, plots, tables: In the order in which they are shown.
        lists: Heading → lines; those without lines are left out.
    """

    answer: str
    cards: Sequence[Card]
    plots: Sequence[Plot]
    tables: Sequence[TableView]
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)
