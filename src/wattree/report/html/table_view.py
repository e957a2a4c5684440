"""A table of a report as words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


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
