"""Trials of several processes per device, as text."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from wattree.report.words import percent, significant
from wattree.runtime.tune import Choice, TrialRow, TrialSetting
from wattree.units import format_bytes, format_time

_NO_METER = "no meter"
#: No table is as wide: what it is measured within, in columns.
_WIDEST = 1000


def show_choice(choice: Choice, console: Console) -> None:
    """Print the trials as a table, alternatives with one process, and the choice."""
    table = Table(box=None)
    table.add_column("trial", no_wrap=True)
    for name in ("step", "samples/s", "to q = 1", "energy/sample", "data", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    alone = choice.rows[0]
    for row in choice.rows:
        _add(table, row, alone, choice.chosen)
    if choice.competitors:
        table.add_section()
        for row in choice.competitors:
            _add(table, row, alone, choice.chosen)
    # Figures are whole on a narrow console, too: logs have 80 columns, and its lines may wrap.
    whole = console.measure(table, options=console.options.update(width=_WIDEST)).maximum
    console.width = max(console.width, whole)
    console.print(table)
    console.print("  data: waits for loaders; *: chosen; memory: of one process", highlight=False)
    for row in (*choice.rows, *choice.competitors):
        if row.fault:
            console.print(
                f"  {row.setting.words()}: cannot: {row.fault}", soft_wrap=True, markup=False
            )
    for sentence in choice.why:
        console.print(f"  {sentence}", soft_wrap=True, highlight=False)
    console.print(f"chosen: {choice.chosen.words()}", soft_wrap=True, highlight=False)


def _add(table: Table, row: TrialRow, alone: TrialRow, chosen: TrialSetting) -> None:
    name = row.setting.words() + (" *" if row.setting == chosen else "")
    if row.fault:
        table.add_row(name, "–")
        return
    table.add_row(
        name,
        format_time(row.step_s),
        significant(row.rate),
        f"{row.rate / alone.rate:.2f} x",
        _NO_METER if row.energy_j is None else f"{row.energy_j:.3g} J",
        percent(row.data_share),
        format_bytes(row.memory_bytes),
    )
