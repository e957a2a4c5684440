"""Summaries as tables: for a terminal, and as markdown for a document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from wattree.units import format_bytes, format_quantity, format_time
from wattree.validation.score import ALL_SOURCES, Scored, Summary

#: Quantity → what people call it.
QUANTITY_TITLES = {
    "step_time_s": "Step time",
    "peak_memory_bytes": "Peak memory",
    "average_power_w": "Average power",
    "energy_j": "Energy",
}
_ABSENT = "-"
_ROW_IDS_SHOWN = 4

_Cells = tuple[str, ...]
_SUMMARY_HEAD = ("source", "rows", "mean", "median", "p90", "bias", "pairs right", "skipped")
_COVERAGE_HEAD = ("quantity", "evidence", "rows", "inside")
_LEFT_OUT_HEAD = ("mean, source left out",)
#: Head of a column → the same in two lines.
_HEAD_LINES = {"mean, source left out": "mean, source\nleft out", "pairs right": "pairs\nright"}
_WORST_HEAD = ("row", "source", "model", "devices", "measured", "predicted", "error")


_HOLD_OUT_HEAD = ("rows", "held out", "mean", "median", "worst")


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldOutLine:
    """Errors on rows that a fit has not seen.

    Attributes:
        rows: Kind of rows.
        held_out: What the fit never saw, one after the other.
        mean, median: Of the absolute errors of all rows.
        worst: The one with the largest mean error.
        error: Its mean absolute error.
    """

    rows: str
    held_out: str
    mean: float
    median: float
    worst: str
    error: float


def summary_table(
    summary: Mapping[str, Summary], *, quantity: str, left_out: Mapping[str, float] | None = None
) -> Table:
    """Return the errors of one quantity by source.

    Args:
        summary: Source (or `all`) → summary.
        quantity: One of `measurement.QUANTITIES`.
        left_out: Source (or `all`) → mean absolute error where it was left out of the
            calibration; adds a column.
    """
    head, lines = _summary_cells(summary, left_out)
    table = _table(f"{QUANTITY_TITLES.get(quantity, quantity)}, error against measured rows [%]")
    # What is skipped has a table of its own.
    places = [place for place, name in enumerate(head) if name != "skipped"]
    for place in places:
        _add_column(table, _HEAD_LINES.get(head[place], head[place]), is_text=not place)
    for line, entry in zip(lines, summary.values(), strict=True):
        cells = {head[place]: line[place].replace(" %", "") for place in places}
        if entry.pairs and entry.order is not None:
            cells["pairs right"] = f"{round(entry.order * entry.pairs)} of {entry.pairs}"
        style = "bold" if line[0] == ALL_SOURCES else None
        table.add_row(*map(escape, cells.values()), style=style)
    return table


def _table(title: str) -> Table:
    """Return an empty table; without lines between its columns it fits a narrow terminal."""
    return Table(
        title=f"\n{title}",
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )


def _add_column(table: Table, name: str, *, is_text: bool) -> None:
    """Add a column; a number is never cut, and text continues on the next line."""
    table.add_column(
        name, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold"
    )


def summary_markdown(
    summary: Mapping[str, Summary], *, left_out: Mapping[str, float] | None = None
) -> str:
    """Return the same table as markdown."""
    head, lines = _summary_cells(summary, left_out)
    return _markdown(head, lines, left=1)


def worst_table(entries: Iterable[Scored]) -> Table:
    """Return rows with their errors, in the order given."""
    table = _table("Largest errors")
    for name in _WORST_HEAD:
        _add_column(table, name, is_text=name in _WORST_HEAD[:4])
    for entry in entries:
        table.add_row(*map(escape, _worst_cells(entry)))
    return table


def coverage_table(covered: Mapping[str, Mapping[str, tuple[float, int]]]) -> Table:
    """Return how many measured values are in their 80 % intervals, by class of evidence."""
    table = _table("Measured values inside 80 % intervals")
    for name in _COVERAGE_HEAD:
        _add_column(table, name, is_text=name in _COVERAGE_HEAD[:2])
    for quantity, classes in covered.items():
        for name, (inside, rows) in classes.items():
            style = "bold" if name == ALL_SOURCES else None
            title = QUANTITY_TITLES.get(quantity, quantity)
            table.add_row(title, escape(name), str(rows), f"{100 * inside:.0f} %", style=style)
    return table


def worst_markdown(entries: Iterable[Scored]) -> str:
    """Return the same table as markdown."""
    return _markdown(_WORST_HEAD, [_worst_cells(entry) for entry in entries], left=3)


def hold_out_table(lines: Sequence[HoldOutLine]) -> Table:
    """Return the errors on rows that a fit has not seen, one line for each kind of hold-out."""
    table = _table("Step time, error on rows held out of the fit (stored in the calibration)")
    for name in _HOLD_OUT_HEAD:
        _add_column(table, name, is_text=name not in {"mean", "median"})
    for line in lines:
        table.add_row(*map(escape, _hold_out_cells(line)))
    return table


def hold_out_markdown(lines: Sequence[HoldOutLine]) -> str:
    """Return the same table as markdown."""
    return _markdown(_HOLD_OUT_HEAD, map(_hold_out_cells, lines), left=2)


def _hold_out_cells(line: HoldOutLine) -> _Cells:
    return (
        line.rows,
        line.held_out,
        _percent(line.mean),
        _percent(line.median),
        _ABSENT if line.worst == line.held_out else f"{line.worst}: {_percent(line.error)}",
    )


def skipped_table(entries: Iterable[Scored]) -> Table:
    """Return why rows have no prediction: one line per source and reason, most rows first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        # Reasons start with the row they are about, which has its own column here.
        reason = (entry.skipped or "").removeprefix(f"row {entry.row.row_id}: ")
        groups.setdefault((entry.row.source_id, reason), []).append(entry.row.row_id)
    table = _table("Skipped rows")
    for name in ("source", "rows", "reason", "row ids"):
        _add_column(table, name, is_text=name != "rows")
    for (source, reason), row_ids in sorted(groups.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(row_ids[:_ROW_IDS_SHOWN])
        more = f" and {len(row_ids) - _ROW_IDS_SHOWN} more" if len(row_ids) > _ROW_IDS_SHOWN else ""
        table.add_row(escape(source), str(len(row_ids)), escape(reason), escape(shown + more))
    return table


def _summary_cells(
    summary: Mapping[str, Summary], left_out: Mapping[str, float] | None
) -> tuple[_Cells, list[_Cells]]:
    head = _SUMMARY_HEAD if left_out is None else _SUMMARY_HEAD + _LEFT_OUT_HEAD
    lines = []
    for source, entry in summary.items():
        line: _Cells = (
            source,
            str(entry.count),
            _percent(entry.mean_abs_error),
            _percent(entry.median_abs_error),
            _percent(entry.p90_abs_error),
            _percent(entry.bias, signed=True),
            f"{_percent(entry.order)} of {entry.pairs}" if entry.pairs else _ABSENT,
            str(entry.skipped),
        )
        if left_out is not None:
            line += (_percent(left_out.get(source)),)
        lines.append(line)
    return head, lines


def _worst_cells(entry: Scored) -> _Cells:
    row = entry.row
    return (
        row.row_id,
        row.source_id,
        row.model_name or _ABSENT,
        f"{row.n_accel or '?'} x {row.accelerator}",
        _value(entry.measured, entry.quantity),
        _value(entry.predicted, entry.quantity),
        _percent(entry.error, signed=True),
    )


def _value(value: float | None, quantity: str) -> str:
    if value is None:
        return _ABSENT
    if quantity.endswith("_bytes"):
        return format_bytes(value)
    if quantity.endswith("_s"):
        return format_time(value)
    return format_quantity(value, quantity.rsplit("_", 1)[1].upper())


def _percent(share: float | None, *, signed: bool = False) -> str:
    if share is None:
        return _ABSENT
    return f"{100 * share:+.1f} %" if signed else f"{100 * share:.1f} %"


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]], *, left: int) -> str:
    rule = ["---" if i < left else "---:" for i in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *lines])
