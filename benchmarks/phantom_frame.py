"""What sections of the phantom table hand over, and how they are printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Figure
from benchmarks.phantom_turns import Standing

__all__ = ["Part", "show"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the table.

    Attributes:
        title: Its heading.
        figures: What must be reached.
        heads: Of the columns of `rows`.
        rows: What was measured, in words.
        notes: Sentences below.
        standings: The same in numbers, by name.
    """

    title: str
    figures: tuple[Figure, ...]
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    standings: Mapping[str, Standing] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "title": self.title,
            "figures": [asdict(each) for each in self.figures],
            "notes": list(self.notes),
            "measured": {name: asdict(each) for name, each in self.standings.items()},
        }


def show(part: Part, console: Console) -> None:
    """Print a part: what must be reached, then what was measured."""
    table = Table(title=part.title, title_justify="left")
    for name in ("measure", "wanted", "found", ""):
        table.add_column(name, overflow="fold")
    for each in part.figures:
        verdict = ("met" if each.reached else "MISSED") if each.wanted else ""
        table.add_row(each.measure, each.wanted, each.found, verdict)
    console.print(table)
    if part.rows:
        beside = Table(*part.heads)
        for row in part.rows:
            beside.add_row(*row)
        console.print(beside)
    for note in part.notes:
        console.print(f"  {note}")
