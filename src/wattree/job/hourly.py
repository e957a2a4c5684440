"""A user's hourly series of grid intensity and price: CSV → `HourlySeries`, every fault listed."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from wattree.energy.hourly import HourlySeries
from wattree.errors import JobError
from wattree.files import read_text, refusal
from wattree.job.problems import shown
from wattree.units import UNITS, whole_number

_HOUR = timedelta(hours=1)
_OTHER_MONEY = re.compile("EUR|€|GBP|£|CHF|JPY|CNY", re.IGNORECASE)

#: Kind of a column → what it is called, and its bounds: no grid and no market has come within a
#: factor of ten. [per kWh]
_COLUMNS = {
    "gco2e_per_j": ("gCO2e/kWh", 0.0, 10_000.0),
    "usd_per_j": ("USD/kWh", -1_000.0, 1_000.0),
}
_HEAD = "hour,gCO2e/kWh, hour,USD/kWh or hour,gCO2e/kWh,USD/kWh"
#: Ten years of quarters of an hour, and no more bytes than they take.
_MOST_ROWS = 10 * 366 * 24 * 4
_LIMIT_BYTES = 64 << 20
_MOST_LISTED = 20


def read_hourly(path: str | Path) -> HourlySeries:
    """Return the series of a CSV file: a row for each hour, or part of one, and none left out.

    The head is `hour` and a unit of carbon (`gCO2e/kWh`), of price (`USD/kWh`, `USD/MWh`) or both.
    Hours are whole numbers that rise by one, or times such as `2026-01-31T13:00` that rise by an
    hour or by an equal part of one, such as 15 minutes, which is averaged. Prices may be below
    zero, as markets have them; intensities may not.

    Raises:
        JobError: The file cannot be read or is no such series; every problem has its line.
    """
    reader = csv.reader(read_text(path, limit_bytes=_LIMIT_BYTES).splitlines())
    try:
        rows = [[cell.strip() for cell in row] for row in reader]
    except csv.Error as error:
        raise JobError(str(path), [f"line {reader.line_num}: no CSV table ({error})"]) from None
    kinds = _kinds(rows[0] if rows else [], path)
    body = [(line, row) for line, row in enumerate(rows[1:], start=2) if any(row)]
    if not 1 <= len(body) <= _MOST_ROWS:
        raise JobError(
            str(path), [f"found {len(body):,} hours, expected from 1 to {_MOST_ROWS:,} of them"]
        )
    faults: list[str] = []
    parts = _rows_per_hour([row[0] for _, row in body[:2]])
    hours, columns = _read(body, rows[0], list(kinds), parts, faults)
    if not faults:
        faults += _incomplete(hours, parts, body[-1][0])
    if faults:
        raise refusal(str(path), faults, most=_MOST_LISTED)
    found = {
        kind: tuple(sum(column[n : n + parts]) / parts for n in range(0, len(column), parts))
        for kind, column in zip(kinds, columns, strict=True)
    }
    return HourlySeries(
        name=Path(path).name,
        hours=tuple(hours[::parts]),
        carbon_gco2e_per_j=found.get("gco2e_per_j"),
        price_usd_per_j=found.get("usd_per_j"),
    )


def _kinds(head: Sequence[str], path: str | Path) -> dict[str, str]:
    """Return kind → unit of the columns behind the hour, as the head says.

    Raises:
        JobError: It is no such head.
    """
    found = {kind: unit for unit in head[1:] for kind in _COLUMNS if unit in UNITS[kind]}
    if head[:1] == ["hour"] and found and len(found) == len(head) - 1:
        return found
    text = ",".join(head) or "nothing"
    hint = "; convert prices to USD, no exchange rate is known" if _OTHER_MONEY.search(text) else ""
    raise JobError(
        str(path), [f"line 1: found {shown(text)}, expected the head {_HEAD} (or per MWh){hint}"]
    )


def _rows_per_hour(first: Sequence[str]) -> int:
    """Return the rows of an hour: more than one if the first two are an equal part of it apart."""
    times = [time for text in first if isinstance(time := _hour(text), datetime)]
    if len(times) < 2 or (times[0].tzinfo is None) != (times[1].tzinfo is None):
        return 1
    gap = times[1] - times[0]
    parts, rest = divmod(_HOUR, gap) if timedelta(minutes=1) <= gap < _HOUR else (1, timedelta())
    return 1 if rest else parts


def _read(
    body: Sequence[tuple[int, list[str]]],
    head: Sequence[str],
    kinds: Sequence[str],
    parts: int,
    faults: list[str],
) -> tuple[list[str], list[list[float]]]:
    """Return the names of rows and the columns of values, noting what is wrong. [SI]"""
    hours, columns = [], [[] for _ in kinds]  # type: tuple[list[str], list[list[float]]]
    before: int | datetime | None = None
    for line, row in body:
        if len(row) != len(head):
            faults.append(f"line {line}: found {len(row)} values, expected {len(head)}")
            before = None
            continue
        before = _followed(row[0], before, line, parts, faults)
        hours.append(row[0])
        for column, kind, unit, text in zip(columns, kinds, head[1:], row[1:], strict=True):
            column.append(_value(kind, unit, text, line, faults))
    return hours, columns


def _incomplete(hours: Sequence[str], parts: int, last: int) -> list[str]:
    """Return what is wrong with the first and the last hour of a series with parts of hours."""
    if parts == 1:
        return []
    begin, found = _hour(hours[0]), []
    if isinstance(begin, datetime) and (begin.minute or begin.second):
        found.append(f"line 2: hour: {hours[0]} is no full hour; begin with one")
    elif rest := len(hours) % parts:
        found.append(f"line {last}: the last hour has {rest} of {parts} rows; complete it")
    return found


def _followed(
    text: str, before: int | datetime | None, line: int, parts: int, faults: list[str]
) -> int | datetime | None:
    """Return the hour of a row after noting what is wrong with it; None if it is none."""
    hour = _hour(text)
    if hour is None:
        faults.append(
            f"line {line}: hour: found {shown(text)}, expected a whole number or a time such as "
            "2026-01-31T13:00"
        )
        return None
    if before is None:
        return hour
    if isinstance(hour, int) and isinstance(before, int):
        gap: float = hour - before
    elif isinstance(hour, datetime) and isinstance(before, datetime):
        if (hour.tzinfo is None) != (before.tzinfo is None):
            faults.append(f"line {line}: hour: found {shown(text)}, expected a time zone in all")
            return hour
        gap = (hour - before) / (_HOUR / parts)
    else:
        faults.append(f"line {line}: hour: found {shown(text)}, expected the same kind in all rows")
        return hour
    if gap == 1:
        return hour
    step = "hour" if parts == 1 else "row"
    if gap <= 0:
        what = "comes twice" if gap == 0 else "lies before the row above; sort the rows by hour"
        faults.append(f"line {line}: hour: {text} {what}")
    elif gap < 1:
        wanted = "no hour" if parts == 1 else f"no {60 / parts:g} minutes"
        faults.append(f"line {line}: hour: {text} is {wanted} after the row above")
    else:
        missing = f"{gap - 1:g} {step}{'s' if gap > 2 else ''} missing before it"
        faults.append(f"line {line}: hour: {text} has {missing}; fill the gap")
    return hour


def _hour(text: str) -> int | datetime | None:
    if (number := whole_number(text)) is not None:
        return number
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _value(kind: str, unit: str, text: str, line: int, faults: list[str]) -> float:
    """Return a value, after noting what is wrong with it. [SI]"""
    usual, least, most = _COLUMNS[kind]
    scale = UNITS[kind][usual] / UNITS[kind][unit]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not least * scale <= value <= most * scale:
        found = shown(text) if text else "nothing"
        faults.append(
            f"line {line}: {unit}: found {found}, expected a number from {least * scale:g} to "
            f"{most * scale:g}"
        )
    return value * UNITS[kind][unit]
