"""A node's own meter (a power strip, a BMC) from the CSV file that its logger writes.

The first line is `time,watts` or `time,joules`; times are Unix seconds or ISO 8601, of a clock set
as this machine's is. The file may be complete or still growing.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from wattree.errors import MeterError
from wattree.measure.meter import METERS, Domain, MeterOptions, Meters, Quantity, Reading
from wattree.trace.run import BOARD

_COLUMNS = {"watts": Quantity.POWER, "joules": Quantity.ENERGY}
_EXPECTED = "expected a first line 'time,watts' or 'time,joules'"
#: A node of accelerators draws some 15 kW; racks are no nodes. [W]
_MOST_W = 100_000.0


class CsvMeter:
    """Energy of the whole node.

    Args:
        path: The file.
        shift_s: Added to its times: how far its clock is behind this machine's. [s]
        clock: The monotonic clock.
        wall_clock: The clock of the file's times.

    Raises:
        MeterError: There is no such file, or its first line is another.
    """

    kind = "csv"

    def __init__(
        self,
        path: str | Path,
        *,
        shift_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._shift_s = Path(path), shift_s
        if not math.isfinite(shift_s):
            raise MeterError(f"{path}: found a shift of {shift_s} s, expected a number")
        self._clock, self._wall_clock = clock, wall_clock
        header, self._offset = self._first_line()
        self._lines = 1  #: lines that were read, the header among them
        names = [name.strip().lower() for name in header]
        known = [name for name in names if name in _COLUMNS]
        if "time" not in names or len(known) != 1:
            raise MeterError(f"{path}: found the first line '{','.join(header)}', {_EXPECTED}")
        self._time, self._value = names.index("time"), names.index(known[0])
        self._quantity = _COLUMNS[known[0]]

    def _first_line(self) -> tuple[list[str], int]:
        try:
            with self._path.open("rb") as file:
                line = file.readline(4096)
        except OSError as error:
            raise MeterError(f"{self._path}: cannot be read ({error.strerror})") from error
        text = line.decode("utf-8-sig", errors="replace").strip()
        return _row(text), len(line)

    def domains(self) -> tuple[Domain, ...]:
        """Return the one domain, the node."""
        domain = Domain(
            name=BOARD, device=str(self._path.absolute()), quantity=self._quantity, most_w=_MOST_W
        )
        return (domain,)

    def read(self) -> Sequence[Reading]:
        """Return the rows added since the last call; unreadable ones as NaN."""
        # The rows' times are of the wall clock as it is now; where it jumps, so does this.
        offset_s = self._wall_clock() - self._clock()
        readings = []
        for line in self._new_lines():
            self._lines += 1
            row = _row(line)
            if not row:
                continue
            at_s = _seconds(_cell(row, self._time)) + self._shift_s - offset_s
            value = _number(_cell(row, self._value))
            readings.append(
                Reading(
                    BOARD,
                    self._clock() if math.isnan(at_s) else at_s,
                    math.nan if math.isnan(at_s) else value,
                    line=self._lines,
                )
            )
        return readings

    def _new_lines(self) -> list[str]:
        try:
            if self._path.stat().st_size < self._offset:
                self._offset = self._lines = 0  # rotated or written anew: its header is no number
            with self._path.open("rb") as file:
                file.seek(self._offset)
                found = file.read()
        except OSError as error:
            raise MeterError(f"{self._path}: cannot be read ({error.strerror})") from error
        whole = found[: found.rfind(b"\n") + 1]  # a line may be half written
        self._offset += len(whole)
        return whole.decode("utf-8", errors="replace").splitlines()


def _row(line: str) -> list[str]:
    """Return the cells of a single line: an unclosed quote ends with the line."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # cells that no logger writes
        return [line]


def _cell(row: Sequence[str], index: int) -> str:
    return row[index].strip() if index < len(row) else ""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _seconds(text: str) -> float:
    """Return Unix time; NaN if it cannot be parsed."""
    number = _number(text)
    if not math.isnan(number):
        return number if math.isfinite(number) else math.nan
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return math.nan


@METERS.register("csv")
def _probe(options: MeterOptions) -> Meters:
    if options.csv is None:
        return Meters()
    return Meters((CsvMeter(options.csv, shift_s=options.csv_shift_s),))
