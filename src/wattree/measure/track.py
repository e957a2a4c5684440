"""Accumulates the readings of one domain, and records faults.

A counter's energy is the sum of its steps, each judged: one that goes back has wrapped or was
reset; one too large was no step. A power is integrated over time. Pure: no clock, no meter.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

from wattree.measure.meter import Domain, Quantity
from wattree.units import plural, span_in_words, spans

#: Sensors update some tenths of a second late, so a step may hold the energy of a longer time
#: than lies between two readings. [s]
_SENSOR_LAG_S = 1.0
#: A power that was not read for this long, and five times as long as usual, is a gap. [s]
_GAP_S = 1.0
#: A time ahead of now by more than the first was, and by more than this, is of a wrong clock. [s]
_AHEAD_S = 5.0
_AHEAD = "had times ahead of the clock, left out"
#: Places in a file that one note names.
_SPANS = 5
#: Readings this close together are one: no sensor is as fast. [s]
_SAME_TIME_S = 1e-6


def unwrapped_step_j(
    before_j: float, after_j: float, *, wraps_j: float | None, limit_j: float
) -> float | None:
    """Return the increase of a counter between two readings; None if no increase explains them.

    Args:
        before_j: The first reading. [J]
        after_j: The second. [J]
        wraps_j: Where it starts again from 0; None if it does not. [J]
        limit_j: More than can have been used in between. [J]
    """
    step_j = after_j - before_j
    if step_j < 0 and wraps_j is not None:
        step_j += wraps_j
    return step_j if 0 <= step_j <= limit_j else None


@dataclass(frozen=True, slots=True)
class _Event:
    """Time of an event in the readings [s], and the line of the file that reported it."""

    at_s: float
    line: int | None


class Track:
    """The accumulated readings of one domain.

    A counter's points are where it was seen to change: between two changes it says nothing.
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self._at = array("d")  # when [s], ascending
        self._total = array("d")  # energy since the first point [J]; of a share the time busy [s]
        self._value = self._read_s = self._changed_s = math.nan
        self._unchanged = False  # whether readings before the first change found none
        self._smallest_j = math.inf
        self._events: dict[str, tuple[str, list[_Event]]] = {}
        self._line: int | None = None  # of the reading that is being taken, in its file
        self._lead_s = 0.0  # by which the first point was ahead of the clock
        self._first_line: int | None = None  # of the first point
        self.highest = 0.0  #: largest value that was taken
        self.updates = 0  #: how often the value was seen to change

    def add(
        self, at_s: float, value: float, *, line: int | None = None, now_s: float = math.inf
    ) -> None:
        """Add a reading; impossible values are left out and noted.

        Args:
            at_s: When it was true, on the monotonic clock. [s]
            value: In the unit of the domain's quantity.
            line: Where it stands in the file that it comes from; None if in none.
            now_s: When it was read, on the same clock. [s]
        """
        self._line = line
        if not math.isfinite(value) or value < 0:
            self._note("reported values that are negative or no numbers", "", at_s)
            return
        if self.domain.quantity is Quantity.POWER and value > self.domain.most_w:
            most = f"{self.domain.most_w:,.0f} W"
            self._note(f"reported more than {most}, which is left out", "", at_s)
            return
        if self._read_s <= now_s < at_s - self._lead_s - _AHEAD_S:
            self._note(_AHEAD, "", now_s)
            return
        if len(self._at) == 1 and at_s <= now_s < self._read_s - _AHEAD_S:
            # The first was of a wrong clock: this one is not, and comes after it.
            self._events.setdefault(_AHEAD, ("", []))[1].append(_Event(at_s, self._first_line))
            del self._at[:], self._total[:]
            self._read_s = math.nan
        if at_s < self._read_s + _SAME_TIME_S:
            if at_s < self._read_s:  # its own time may be before all that is asked for
                self._note(
                    "had readings out of their order, left out", "", min(self._read_s, now_s)
                )
            elif value != self._value:
                self._note("had other values at a time that was read, left out", "", at_s)
            return
        self.highest = max(self.highest, value)
        if not self._at:
            self._lead_s, self._first_line = max(at_s - now_s, 0.0), line
            self._point(at_s, value, 0.0)
            return
        if self.domain.quantity is Quantity.ENERGY:
            self._add_counted(at_s, value)
        else:
            self._add_average(at_s, value)

    def _add_average(self, at_s: float, value: float) -> None:
        length_s = at_s - self._read_s
        if length_s > _GAP_S and length_s > 5 * self._usual_s > 0:
            self._note("had a gap", f" of {length_s:.1f} s, filled with what followed it", at_s)
        if value != self._value:
            self.updates += 1
        self._changed_s = at_s
        # Held since the reading before: what a meter shows is an average that ends now.
        self._point(at_s, value, self._total[-1] + value * length_s)

    def _add_counted(self, at_s: float, value: float) -> None:
        step_j = self._step_j(at_s, value)
        if step_j <= 0:
            self._read_s, self._value = at_s, value
            self._unchanged = self._unchanged or self.updates == 0
            return
        if self.updates == 0 and self._unchanged:
            # The first step began before the first reading: the sensor had counted a part of it.
            del self._at[:], self._total[:]
            self._point(at_s, value, 0.0)
        else:
            self._point(at_s, value, self._total[-1] + step_j)
            self._smallest_j = min(self._smallest_j, step_j)
        self.updates += 1
        self._changed_s = at_s

    def _step_j(self, at_s: float, value: float) -> float:
        before, wraps_j, length_s = self._value, self.domain.wraps_j, at_s - self._read_s
        limit_j = self.domain.most_w * (length_s + _SENSOR_LAG_S)
        if wraps_j is not None and self.domain.most_w * length_s > wraps_j:
            detail = f" in {length_s:.1f} s without a reading"
            self._note("may have wrapped more than once", detail, at_s)
        step_j = unwrapped_step_j(before, value, wraps_j=wraps_j, limit_j=limit_j)
        if step_j is not None:
            if value < before:
                self._note("wrapped, which is taken into account", "", at_s)
            return step_j
        if value < before:
            # What it counts since is part of the step; what it had counted before is lost.
            self._note("was reset", f"; up to {length_s:.2f} s are not counted", at_s)
            return value if value <= limit_j else 0.0
        self._note("jumped", f" by {value - before:.6g} J, which is not counted", at_s)
        return 0.0

    def _point(self, at_s: float, value: float, total: float) -> None:
        self._at.append(at_s)
        self._total.append(total)
        self._read_s, self._value = at_s, value

    def _note(self, what: str, detail: str, at_s: float) -> None:
        self._events.setdefault(what, (detail, []))[1].append(_Event(at_s, self._line))

    @property
    def _usual_s(self) -> float:
        """Mean reading interval so far; 0 before the second point. [s]"""
        return (self._read_s - self._at[0]) / max(len(self._at) - 1, 1)

    @property
    def points(self) -> int:
        """Number of readings available for interpolation."""
        return len(self._at)

    @property
    def first_s(self) -> float:
        """Time of the first point; NaN if there is none. [s]"""
        return self._at[0] if self._at else math.nan

    @property
    def changed_s(self) -> float:
        """Time of the last change (of a power: of its last reading); NaN if there is none. [s]"""
        return self._changed_s

    @property
    def period_s(self) -> float | None:
        """Observed interval between changes (of a power: between readings); None if unknown. [s]"""
        count = len(self._at) - 1
        return (self._at[-1] - self._at[0]) / count if count > 0 else None

    @property
    def resolution_j(self) -> float | None:
        """Smallest observed step of the counter; None for powers, and if unknown. [J]"""
        return self._smallest_j if math.isfinite(self._smallest_j) else None

    def notes(self, start_s: float, end_s: float) -> tuple[str, ...]:
        """Return the events in the readings between two times, with times from the first on."""
        lines = []
        for what, (detail, every) in self._events.items():
            until_s = end_s + (self.period_s or 0.0)
            events = [event for event in every if start_s <= event.at_s <= until_s]
            if events:
                often = f"{len(events)} times, first " if len(events) > 1 else ""
                where = _lines([event.line for event in events if event.line is not None])
                lines.append(f"{what}{detail} ({often}at {events[0].at_s - start_s:.1f} s{where})")
        return tuple(lines)

    def total_at(self, at_s: float) -> float:
        """Return the energy since the first point, interpolated. [J]

        Outside the points it continues at the nearest power for one period of the sensor,
        the energy that a counter has used and not yet shown; beyond that nothing is known.
        """
        count = len(self._at)
        if count < 2:
            return 0.0
        period_s = self.period_s or 0.0
        at_s = min(max(at_s, self._at[0] - period_s), self._at[-1] + period_s)
        right = min(max(bisect_left(self._at, at_s), 1), count - 1)
        left_s, right_s = self._at[right - 1], self._at[right]
        left, step = self._total[right - 1], self._total[right] - self._total[right - 1]
        return left + step * (at_s - left_s) / (right_s - left_s)

    def between(self, start_s: float, end_s: float) -> float:
        """Return the energy between two times; for a utilization the busy time. [J]"""
        return max(0.0, self.total_at(end_s) - self.total_at(start_s))

    def series(
        self, start_s: float, end_s: float, *, most: int
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return times from `start_s` on, and the average value since the previous time.

        Args:
            start_s: Start of the time asked for. [s]
            end_s: Its end. [s]
            most: Points at most: beyond, neighbours are joined, which keeps their energy.
        """
        inside = [at for at in self._at if start_s + _SAME_TIME_S < at < end_s - _SAME_TIME_S]
        every = -(-(len(inside) + 1) // most)
        edges = [start_s, *inside[every - 1 :: every], end_s]
        steps = [
            (after, after - before, self.between(before, after))
            for before, after in pairwise(edges)
            if after > before
        ]
        return (
            tuple(at - start_s for at, _, _ in steps),
            tuple(energy_j / length_s for _, length_s, energy_j in steps),
        )

    def peak(self, start_s: float, end_s: float, *, over_s: float) -> float:
        """Return the highest average over `over_s` from any point; over everything if shorter."""
        if end_s - start_s <= over_s:
            return self.between(start_s, end_s) / (end_s - start_s) if end_s > start_s else 0.0
        starts = [start_s, *(at for at in self._at if start_s < at <= end_s - over_s)]
        return max(self.between(at, at + over_s) for at in starts) / over_s


def _lines(numbers: list[int]) -> str:
    """Return the lines of a file as text, with ranges joined: `; lines 12 to 20, 31`."""
    ordered = sorted(set(numbers))
    shown = [span_in_words(*span) for span in spans(ordered)]
    if not shown:
        return ""
    more = [f"{len(shown) - _SPANS} more"] if len(shown) > _SPANS else []
    return f"; {plural('line', len(ordered))} {', '.join([*shown[:_SPANS], *more])}"
