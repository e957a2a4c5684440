"""Meters whose logger writes a CSV file, complete or still growing; its first line says which.

- `time,watts` or `time,joules`: a node's own meter (a power strip, a BMC);
- `timestamp, index, power.draw [W]`: `nvidia-smi --query-gpu=timestamp,index,power.draw
  --format=csv -l 1`, with `uuid` or `pci.bus_id` in place of the index, and any other columns;
- `timestamp,…,duration,…,energy_consumed,…`: CodeCarbon's `emissions.csv`, a line for each run, or
  several of its totals so far under one `run_id`.

Times are Unix seconds or ISO 8601, of a clock set as this machine's is.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from wattree.errors import MeterError
from wattree.measure.meter import METERS, Domain, MeterOptions, Meters, Quantity, Reading
from wattree.trace.run import BOARD
from wattree.units import JOULES_PER_KWH

_COLUMNS = {"watts": Quantity.POWER, "joules": Quantity.ENERGY}
_POWER_DRAW = "power.draw"
#: Columns that identify the devices of a log; the index, where it has one, numbers its domain.
_KEYS = ("index", "uuid", "pci.bus_id")
_EXPECTED = (
    "expected a first line 'time,watts' or 'time,joules', or that of nvidia-smi (timestamp, "
    "power.draw and index or uuid) or CodeCarbon (timestamp, duration, energy_consumed)"
)
_RUN_MEAN = "by CodeCarbon, evenly over each of its runs: processors, memory and accelerators"
#: CodeCarbon's times are whole seconds: runs in succession overlap by no more. [s]
_OVERLAP_S = 2.0
#: Of a run of CodeCarbon: readings that stand for its even power, at most.
_MOST_READINGS = 3600
#: A node of accelerators draws some 15 kW; racks are no nodes. [W]
_MOST_W = 100_000.0


class CsvMeter:
    """Energy of the whole node, or power of the devices of a log of `nvidia-smi`.

    Args:
        path: The file.
        devices: Of such a log, by index or UUID; None for all.
        shift_s: Added to its times: how far its clock is behind this machine's. [s]
        clock: The monotonic clock.
        wall_clock: The clock of the file's times.

    Raises:
        MeterError: There is no such file, its first line is another, or it has none of the devices
            yet.
    """

    kind = "csv"

    def __init__(
        self,
        path: str | Path,
        *,
        devices: Sequence[str] | None = None,
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
        self._columns = {name.partition(" [")[0]: at for at, name in reversed([*enumerate(names)])}
        self._total_j = 0.0  #: of the runs of CodeCarbon that were read
        self._runs: dict[str, tuple[float, float]] = {}  # run → duration [s] and energy [J] so far
        self._last_run, self._last_end_s = "", -math.inf
        self._opened_s = wall_clock()
        self._concurrent = ""  # error of runs at the same time
        known = [name for name in names if name in _COLUMNS]
        columns = self._columns.keys()
        self._of_row, self._quantity = self._node_rows, Quantity.ENERGY
        self._devices: dict[str, str] = {}
        if "time" in columns and len(known) == 1:
            self._value, self._quantity = self._columns[known[0]], _COLUMNS[known[0]]
        elif {"timestamp", "duration", "energy_consumed"} <= columns:
            self._of_row = self._run_rows
        elif {"timestamp", _POWER_DRAW} <= columns and self._keys():
            self._of_row, self._quantity = self._device_rows, Quantity.POWER
            self._devices = self._found(devices)
        else:
            raise MeterError(f"{path}: found the first line '{','.join(header)}', {_EXPECTED}")

    def _keys(self) -> list[int]:
        """Return the columns that identify devices; the first tells them apart."""
        return [self._columns[name] for name in _KEYS if name in self._columns]

    def _found(self, wanted: Sequence[str] | None) -> dict[str, str]:
        """Return device → domain of the lines so far."""
        offset = self._offset
        rows = [_row(line) for line in self._new_lines()]
        self._offset = offset
        keys = self._keys()
        names: dict[str, list[str]] = {}
        for row in rows:
            cells = [_cell(row, key) for key in keys]
            if cells[0] and not math.isnan(self._time_of(row, "timestamp")):  # no repeated header
                names.setdefault(cells[0], cells)
        if not names:
            raise MeterError(f"{self._path}: no device is in it yet; start its logger before")
        is_index = keys[0] == self._columns.get("index")
        found = {
            cell: f"gpu{cell if is_index else at}"
            for at, (cell, cells) in enumerate(names.items())
            if wanted is None or any(_is_named(each, wanted) for each in cells)
        }
        if not found:
            raise MeterError(
                f"{self._path}: found the devices {', '.join(names)}, expected one of "
                f"{', '.join(wanted or ()) or 'none'} (CUDA_VISIBLE_DEVICES); a log with the "
                "columns index and uuid has both names"
            )
        return found

    def _first_line(self) -> tuple[list[str], int]:
        try:
            with self._path.open("rb") as file:
                line = file.readline(4096)
        except FileNotFoundError as error:
            raise MeterError(
                f"{self._path}: cannot be read ({error.strerror}). It must exist before the "
                "command starts; CodeCarbon writes its own when a run ends: make a short one, "
                "or write the header line of its version into the file"
            ) from error
        except OSError as error:
            raise MeterError(f"{self._path}: cannot be read ({error.strerror})") from error
        text = line.decode("utf-8-sig", errors="replace").strip()
        return _row(text), len(line)

    def domains(self) -> tuple[Domain, ...]:
        """Return the node, or the devices of a log."""
        path = str(self._path.absolute())
        if self._devices:
            return tuple(
                Domain(name=name, device=f"{path} {cell}", quantity=Quantity.POWER)
                for cell, name in self._devices.items()
            )
        note = _RUN_MEAN if self._of_row == self._run_rows else ""
        return (
            Domain(name=BOARD, device=path, quantity=self._quantity, most_w=_MOST_W, note=note),
        )

    def read(self) -> Sequence[Reading]:
        """Return the rows added since the last call; unreadable ones as NaN."""
        # The rows' times are of the wall clock as it is now; where it jumps, so does this.
        offset_s = self._wall_clock() - self._clock()
        readings = []
        if self._concurrent:
            raise MeterError(self._concurrent)
        for line in self._new_lines():
            self._lines += 1
            row = _row(line)
            if not row:
                continue
            for domain, wall_s, value in self._of_row(row):
                at_s = wall_s + self._shift_s - offset_s
                readings.append(
                    Reading(
                        domain,
                        self._clock() if math.isnan(at_s) else at_s,
                        math.nan if math.isnan(at_s) else value,
                        line=self._lines,
                    )
                )
        return readings

    def _node_rows(self, row: Sequence[str]) -> Iterator[tuple[str, float, float]]:
        yield BOARD, self._time_of(row, "time"), _number(_cell(row, self._value))

    def _device_rows(self, row: Sequence[str]) -> Iterator[tuple[str, float, float]]:
        domain = self._devices.get(_cell(row, self._keys()[0]))
        if domain is not None:  # else a header that was written again, or a device left out
            watts = _cell(row, self._columns[_POWER_DRAW]).removesuffix("W")
            yield domain, self._time_of(row, "timestamp"), _number(watts)

    def _run_rows(self, row: Sequence[str]) -> Iterator[tuple[str, float, float]]:
        """Yield the energy counted since a run's line before, as if its power had been even.

        Raises:
            MeterError: Runs overlap: each may have counted the whole machine, or its own device.
        """
        end_s = self._time_of(row, "timestamp")
        whole_s = _number(_cell(row, self._columns["duration"]))
        whole_j = _number(_cell(row, self._columns["energy_consumed"])) * JOULES_PER_KWH
        run = _cell(row, self._columns["run_id"]) if "run_id" in self._columns else ""
        before_s, before_j = self._runs.get(run, (0.0, 0.0))
        length_s, added_j = whole_s - before_s, whole_j - before_j
        if not (length_s > 0 and math.isfinite(end_s + length_s + added_j) and added_j >= 0):
            yield BOARD, math.nan, math.nan
            return
        is_other = run != self._last_run and end_s - length_s < self._last_end_s - _OVERLAP_S
        if is_other and end_s + self._shift_s > self._opened_s:
            self._concurrent = (
                f"{self._path}: runs {self._last_run} and {run} overlap; each may have counted all "
                "devices or its own, so that their energy cannot be added: run one tracker"
            )
            raise MeterError(self._concurrent)
        if run:
            self._runs[run] = whole_s, whole_j
        self._last_run, self._last_end_s = run, end_s
        count = min(max(round(length_s), 10), _MOST_READINGS)
        for number in range(count + 1):
            share = number / count
            yield BOARD, end_s - length_s * (1.0 - share), self._total_j + share * added_j
        self._total_j += added_j

    def _time_of(self, row: Sequence[str], name: str) -> float:
        return _seconds(_cell(row, self._columns[name]))

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


def _is_named(cell: str, names: Sequence[str]) -> bool:
    """Return whether names have a device's index, bus or UUID, or the beginning of its UUID."""
    return cell in names or any(name.startswith("GPU-") and cell.startswith(name) for name in names)


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
        return datetime.fromisoformat(text.replace("/", "-")).timestamp()
    except (ValueError, OverflowError, OSError):
        return math.nan


@METERS.register("csv")
def _probe(options: MeterOptions) -> Meters:
    if options.csv is None:
        return Meters()
    meter = CsvMeter(options.csv, devices=options.devices, shift_s=options.csv_shift_s)
    return Meters((meter,))
