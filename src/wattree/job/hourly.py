"""A user's hourly series of grid intensity and price: CSV → `HourlySeries`, every fault listed."""

from __future__ import annotations

import csv
import math
from datetime import datetime, timedelta
from pathlib import Path

from wattree.energy.hourly import HourlySeries
from wattree.errors import JobError
from wattree.files import read_text, refusal
from wattree.job.problems import shown
from wattree.units import JOULES_PER_KWH, whole_number

_CARBON, _PRICE = "gCO2e/kWh", "USD/kWh"
_HEAD = f"hour,{_CARBON} or hour,{_CARBON},{_PRICE}"
#: Ten years of hours, and no more bytes than they take.
_MOST_HOURS = 10 * 366 * 24
_LIMIT_BYTES = 16 << 20
_MOST_LISTED = 20
#: No grid and no market has come within a factor of ten.
_MOST_CARBON, _MOST_PRICE = 10_000.0, 1_000.0


def read_hourly(path: str | Path) -> HourlySeries:
    """Return the series of a CSV file: a row for each hour, no hour left out.

    The head is `hour,gCO2e/kWh` or `hour,gCO2e/kWh,USD/kWh`. Hours are whole numbers that rise by
    one, or times such as `2026-01-31T13:00` that rise by an hour. Prices may be below zero, as
    markets have them; intensities may not.

    Raises:
        JobError: The file cannot be read or is no such series; every problem has its line.
    """
    reader = csv.reader(read_text(path, limit_bytes=_LIMIT_BYTES).splitlines())
    try:
        rows = [[cell.strip() for cell in row] for row in reader]
    except csv.Error as error:
        raise JobError(str(path), [f"line {reader.line_num}: no CSV table ({error})"]) from None
    head = rows[0] if rows else []
    if head not in (["hour", _CARBON], ["hour", _CARBON, _PRICE]):
        found = ",".join(head) or "nothing"
        raise JobError(str(path), [f"line 1: found {shown(found)}, expected the head {_HEAD}"])
    body = [(line, row) for line, row in enumerate(rows[1:], start=2) if any(row)]
    faults: list[str] = []
    if not 1 <= len(body) <= _MOST_HOURS:
        raise JobError(
            str(path), [f"found {len(body):,} hours, expected from 1 to {_MOST_HOURS:,} of them"]
        )
    hours, columns = [], [[] for _ in head[1:]]  # type: tuple[list[str], list[list[float]]]
    before: int | datetime | None = None
    for line, row in body:
        if len(row) != len(head):
            faults.append(f"line {line}: found {len(row)} values, expected {len(head)}")
            before = None
            continue
        before = _followed(row[0], before, line, faults)
        hours.append(row[0])
        for number, (name, text) in enumerate(zip(head[1:], row[1:], strict=True)):
            columns[number].append(_value(name, text, line, faults))
    if faults:
        raise refusal(str(path), faults, most=_MOST_LISTED)
    return HourlySeries(
        name=Path(path).name,
        hours=tuple(hours),
        carbon_gco2e_per_j=tuple(value / JOULES_PER_KWH for value in columns[0]),
        price_usd_per_j=tuple(value / JOULES_PER_KWH for value in columns[1])
        if len(columns) > 1
        else None,
    )


def _followed(
    text: str, before: int | datetime | None, line: int, faults: list[str]
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
        gap = (hour - before) / timedelta(hours=1)
    else:
        faults.append(f"line {line}: hour: found {shown(text)}, expected the same kind in all rows")
        return hour
    if gap == 1:
        return hour
    if gap <= 0:
        what = "comes twice" if gap == 0 else "lies before the row above; sort the rows by hour"
        faults.append(f"line {line}: hour: {text} {what}")
    elif gap < 1:
        faults.append(f"line {line}: hour: {text} is no hour after the row above")
    else:
        missing = f"{gap - 1:g} hour{'s' if gap > 2 else ''} missing before it"
        faults.append(f"line {line}: hour: {text} has {missing}; fill the gap")
    return hour


def _hour(text: str) -> int | datetime | None:
    if (number := whole_number(text)) is not None:
        return number
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _value(name: str, text: str, line: int, faults: list[str]) -> float:
    least, most = (0.0, _MOST_CARBON) if name == _CARBON else (-_MOST_PRICE, _MOST_PRICE)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not least <= value <= most:
        found = shown(text) if text else "nothing"
        faults.append(
            f"line {line}: {name}: found {found}, expected a number from {least:g} to {most:g}"
        )
    return value
