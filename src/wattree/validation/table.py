"""Summaries as tables: for a terminal, and as markdown for a document."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    # What is skipped has a table of its own.
    places = [place for place, name in enumerate(head) if name != "skipped"]
    rows = []
    for line, entry in zip(lines, summary.values(), strict=True):
        cells = {head[place]: line[place].replace(" %", "") for place in places}
        if entry.pairs and entry.order is not None:
            cells["pairs right"] = f"{round(entry.order * entry.pairs)} of {entry.pairs}"
        rows.append(tuple(cells.values()))
    title = f"{QUANTITY_TITLES.get(quantity, quantity)}, error against measured rows [%]"
    return _table(title, [_HEAD_LINES.get(head[place], head[place]) for place in places], rows)


def _table(
    title: str, head: Sequence[str], rows: Iterable[_Cells], *, texts: Collection[int] = (0,)
) -> Table:
    """Return a table; without lines between its columns it fits a narrow terminal.

    Args:
        title: Above it.
        head: Of its columns.
        rows: Their cells; those of all sources are bold.
        texts: Columns that continue on the next line; in others a number is never cut.
    """
    table = Table(
        title=f"\n{title}",
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for place, name in enumerate(head):
        is_text = place in texts
        table.add_column(
            name, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold"
        )
    for row in rows:
        table.add_row(*map(escape, row), style="bold" if ALL_SOURCES in row[:2] else None)
    return table


def summary_markdown(
    summary: Mapping[str, Summary], *, left_out: Mapping[str, float] | None = None
) -> str:
    """Return the same table as markdown."""
    head, lines = _summary_cells(summary, left_out)
    return _markdown(head, lines, left=1)


def worst_table(entries: Iterable[Scored]) -> Table:
    """Return rows with their errors, in the order given."""
    return _table("Largest errors", _WORST_HEAD, map(_worst_cells, entries), texts=range(4))


def coverage_table(covered: Mapping[str, Mapping[str, tuple[float, int]]]) -> Table:
    """Return how many measured values are in their 80 % intervals, by class of evidence."""
    rows = [
        (QUANTITY_TITLES.get(quantity, quantity), name, str(rows), f"{100 * inside:.0f} %")
        for quantity, classes in covered.items()
        for name, (inside, rows) in classes.items()
    ]
    return _table("Measured values inside 80 % intervals", _COVERAGE_HEAD, rows, texts=range(2))


def worst_markdown(entries: Iterable[Scored]) -> str:
    """Return the same table as markdown."""
    return _markdown(_WORST_HEAD, map(_worst_cells, entries), left=3)


def hold_out_table(lines: Sequence[HoldOutLine]) -> Table:
    """Return the errors on rows that a fit has not seen, one line for each kind of hold-out."""
    title = "Step time, error on rows held out of the fit (stored in the calibration)"
    return _table(title, _HOLD_OUT_HEAD, map(_hold_out_cells, lines), texts=(0, 1, 4))


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
    rows = []
    for (source, reason), row_ids in sorted(groups.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(row_ids[:_ROW_IDS_SHOWN])
        more = f" and {len(row_ids) - _ROW_IDS_SHOWN} more" if len(row_ids) > _ROW_IDS_SHOWN else ""
        rows.append((source, str(len(row_ids)), reason, shown + more))
    return _table("Skipped rows", ("source", "rows", "reason", "row ids"), rows, texts=(0, 2, 3))


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
