"""Common elements of terminal reports: sections and tables of one style."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from wattree.report.words import NOT_APPLICABLE, percent

#: Of what stands below a title. [columns]
INDENT: Final = (0, 0, 0, 2)
_BAR_COLUMNS: Final = 24


def section(
    title: str | Text, body: Table | Iterable[str | Text | Table], console: Console
) -> None:
    """Print a title and its content, after an empty line; nothing where there is no content."""
    parts = [body] if isinstance(body, Table) else list(body)
    if parts:
        console.print()
        console.print(Text(title, style="bold") if isinstance(title, str) else title)
    for part in parts:
        console.print(Padding(Text(part) if isinstance(part, str) else part, INDENT))


def headed_table(
    *heads: str, rows: Iterable[Sequence[str | Text]] = (), words: Container[str] = ()
) -> Table:
    """Return a table whose columns have heads.

    Args:
        heads: Of columns of numbers but for the first, which holds words.
        rows: A cell for each column.
        words: Others that do.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for place, head in enumerate(heads):
        is_words = place == 0 or head in words
        table.add_column(head, justify="left" if is_words else "right", no_wrap=not is_words)
    return with_rows(table, rows)


def with_rows(table: Table, rows: Iterable[Sequence[str | Text]]) -> Table:
    """Return a table after rows are added to it."""
    for row in rows:
        table.add_row(*row)
    return table


def plain_table() -> Table:
    """Return an empty table without heads."""
    return Table(box=None, show_header=False, padding=(0, 1, 0, 0))


def facts_table(rows: Iterable[tuple[str, Text | str]], *, width: int = 12) -> Table:
    """Return one line for each name and its description.

    Args:
        width: Of the column of names, at least.
    """
    table = plain_table()
    table.add_column(no_wrap=True, min_width=width, style="dim")
    table.add_column()
    return with_rows(table, rows)


def bullets(lines: Iterable[str]) -> Table:
    """Return a list."""
    return with_rows(plain_table(), (("-", line) for line in lines))


def shares_table(
    rows: Iterable[tuple[str, float, str]], *, total: float, console: Console
) -> Table:
    """Return parts with their share of `total` as number and bar.

    Args:
        rows: Of each part its name, its size and its size in words.
    """
    table = plain_table()
    table.add_column(no_wrap=True, min_width=22)
    table.add_column(justify="right", no_wrap=True, min_width=10)
    table.add_column(justify="right", no_wrap=True, min_width=7)
    table.add_column(no_wrap=True)
    return with_rows(
        table,
        ((name, text, share(part, total), _bar(part, total, console)) for name, part, text in rows),
    )


def share(part: float, total: float) -> str:
    """Return a part of a total in percent."""
    return percent(part / total) if total else NOT_APPLICABLE


def _bar(part: float, total: float, console: Console) -> Text:
    block = "█" if console.encoding.lower().startswith("utf") else "#"
    columns = round(_BAR_COLUMNS * part / total) if total else 0
    return Text(block * max(0, min(columns, _BAR_COLUMNS)), style="cyan")
