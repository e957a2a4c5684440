"""Journal of finished measurements, one line of JSON each, so that a later call can resume."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wattree.arrays import Floats
from wattree.errors import JsonTextError, OutputError, RunError
from wattree.files import read_text
from wattree.json_text import parsed_object
from wattree.measure.profile.machine import Machine
from wattree.measure.profile.points import PointFamily, ProfilePoint
from wattree.trace.plain import from_plain

_SCHEMA = "wattree-profile/1"
_LIMIT_BYTES = 1 << 26
#: Faults that one message lists.
_LISTED = 20
_REPAIR = "remove these lines to measure them again, or name another --out"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointMeasurement:
    """One point in one round.

    Attributes:
        wall_s: Of one call, on every rank. [s]
        busy_s: Processor time of the calling thread, likewise; of what is at once, of all. [s]
    """

    wall_s: tuple[float, ...]
    busy_s: tuple[float, ...]


class Times:
    """Measured times of one point.

    Attributes:
        rounds: Round → measurement.
    """

    def __init__(self, point: ProfilePoint, machine: Machine) -> None:
        self.point = point
        self.rounds: dict[int, PointMeasurement] = {}
        self._machine = machine

    @property
    def by_round(self) -> Floats:
        """The time of each round: the median rank's. [s]"""
        return np.array([self._seconds(self.rounds[number]) for number in sorted(self.rounds)])

    @property
    def seconds(self) -> float:
        """Median over rounds. [s]"""
        return float(np.median(self.by_round))

    def more_than_s(self, other: Times) -> float:
        """Return the processor time above another point's in the same rounds. [s]

        Longer by as much as ranks share cores; median over rounds, NaN if none has both.
        """
        both = self.rounds.keys() & other.rounds.keys()
        found = [self._shared_s(self.rounds[n]) - other._shared_s(other.rounds[n]) for n in both]
        return float(np.median(found)) if found else float("nan")

    @property
    def spread(self) -> float:
        """Largest minus smallest round, over the median."""
        return float(np.ptp(self.by_round)) / self.seconds

    def _seconds(self, measured: PointMeasurement) -> float:
        """Return the time of a round. [s]

        What processors compute takes its processor time, longer by as much as ranks share cores:
        that leaves out the time that other programs had them. Exchanges wait, and count by the
        clock on the wall, as everything on accelerators does.
        """
        if self._machine.accelerator or self.point.kind in {
            PointFamily.COLLECTIVE,
            PointFamily.OVERLAP,
        }:
            return float(np.median(measured.wall_s))
        return self._shared_s(measured)

    def _shared_s(self, measured: PointMeasurement) -> float:
        return float(np.median(measured.busy_s)) * self._machine.share


class Journal:
    """The measurements in a file.

    Args:
        path: The file; made where there is none.

    Raises:
        RunError: The file is of another machine, no such file, or damaged; faults are listed.
    """

    def __init__(self, path: Path, machine: Machine) -> None:
        self.path, self.machine = path, machine
        self.times: dict[str, Times] = {}
        self.skipped: dict[str, str] = {}
        self.resident_bytes = 0.0
        header = {"schema": _SCHEMA, "machine": machine.as_json()}
        if path.exists():
            self._read(header)
        else:
            self._append(header)

    def has(self, point: ProfilePoint, number: int) -> bool:
        """Return whether a round of a point is recorded, or cannot be measured."""
        key = point.key
        return key in self.skipped or (key in self.times and number in self.times[key].rounds)

    def add(self, point: ProfilePoint, number: int, measured: PointMeasurement) -> None:
        """Record a measurement."""
        self._append({"point": asdict(point), "round": number, **asdict(measured)})
        self._times(point).rounds[number] = measured

    def skip(self, point: ProfilePoint, why: str) -> None:
        """Record that the machine cannot run a point."""
        self._append({"point": asdict(point), "skipped": why})
        self.skipped[point.key] = why

    def note_resident(self, resident_bytes: float) -> None:
        """Record the memory of a process before it has a model. [B]"""
        self._append({"resident_bytes": resident_bytes})
        self.resident_bytes = resident_bytes

    def measured(self, kind: PointFamily) -> list[Times]:
        """Return the measurements of one kind, in the order of the file."""
        return [each for each in self.times.values() if each.point.kind is kind and each.rounds]

    def _times(self, point: ProfilePoint) -> Times:
        return self.times.setdefault(point.key, Times(point, self.machine))

    def _append(self, what: Mapping[str, Any]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(what) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written ({error.strerror})") from error

    def _read(self, header: Mapping[str, Any]) -> None:
        lines = read_text(self.path, limit_bytes=_LIMIT_BYTES).splitlines()
        # A line that was cut short by the end of the process is measured again.
        parsed = enumerate(map(_parsed, lines), start=1)
        found = [(number, line) for number, line in parsed if line is not None]
        if not found or found[0][1].get("schema") != _SCHEMA:
            raise RunError(
                str(self.path), [f"is no file of measurements ({_SCHEMA}); name another --out"]
            )
        differ = _differences(found[0][1].get("machine"), header["machine"])
        if differ:
            raise RunError(
                str(self.path),
                [
                    f"holds measurements of another device ({differ}); remove it to measure this "
                    "one, or name another --out"
                ],
            )
        problems: list[str] = []
        for number, line in found[1:]:
            faults: list[str] = []
            self._take(line, faults)
            problems += [f"line {number}: {fault}" for fault in faults]
        if problems:
            raise RunError(str(self.path), [*problems[:_LISTED], _REPAIR])
        if _parsed(lines[-1]) is None:
            self._append({})  # end the cut line

    def _take(self, line: Mapping[str, Any], faults: list[str]) -> None:
        """Record the content of a line, or add its fault to `faults`."""
        if "resident_bytes" in line:
            resident = line["resident_bytes"]
            if not _is_time(resident):
                faults.append(f"resident_bytes: found {str(resident)[:40]!r}, expected a number")
                return
            self.resident_bytes = float(resident)
        elif "point" in line:
            point = from_plain(ProfilePoint, line["point"], faults)
            if point is not None and "skipped" in line:
                self.skipped[point.key] = str(line["skipped"])
            elif point is not None:
                self._take_times(point, line, faults)

    def _take_times(self, point: ProfilePoint, line: Mapping[str, Any], faults: list[str]) -> None:
        given = {key: value for key, value in line.items() if key not in {"point", "round"}}
        measured, number = from_plain(PointMeasurement, given, faults), line.get("round")
        if type(number) is not int:
            faults.append(f"round: found {str(number)[:40]!r}, expected a whole number")
        elif measured is not None:
            for name, times in asdict(measured).items():
                if not times or not all(map(_is_time, times)):
                    faults.append(f"{name}: expected the time of each rank")
            if not faults:
                self._times(point).rounds[number] = measured


def _is_time(value: object) -> bool:
    """Return whether a value is a finite non-negative number."""
    return type(value) in {int, float} and 0 <= value < math.inf  # type: ignore[operator]


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        return parsed_object(line)
    except JsonTextError:  # no JSON, digits or brackets without end
        return None


def _differences(old: object, new: Mapping[str, Any]) -> str:
    known = old if isinstance(old, dict) else {}
    return ", ".join(
        f"{key}: {known.get(key)}, not {new[key]}" for key in new if known.get(key) != new[key]
    )
