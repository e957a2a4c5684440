"""Reads meters in a thread while something runs, and returns the readings of a window.

Times are of the monotonic clock: the wall clock may jump, which is noted and changes nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from string import digits

from wattree.errors import MeterError
from wattree.measure.meter import Domain, Meter, Quantity
from wattree.measure.track import Track
from wattree.trace import MeterReading, PowerSeries, RunOrigin
from wattree.trace.run import BOARD

#: Updates of a sensor below which its window says too little: the first and the last update are
#: each off by up to one, so that ten of them leave an error of some 10 %.
LEAST_UPDATES = 10
#: A counter that stands still for so long is stuck. [s]
_STUCK_S = 2.0
#: A sensor that is later than two of its periods by this has left something out. [s]
_LATE_S = 0.2
#: The wall clock is adjusted by milliseconds all the time; more is a jump. [s]
_JUMP_S = 0.5
#: No clock is 30 years ahead: the times are of another unit. [s]
_NO_CLOCK_S = 1e9
#: Why a domain is missing that another process of the job reads.
READ_ELSEWHERE = "another process that writes the same file reads it"
#: Name of this node, the first part of its domains.
_NODE = "node0"
#: Points of one series in a file.
_MOST_POINTS = 20_000
#: A peak is an average over so long: shorter ones are those of the sensor's updates. [s]
PEAK_OVER_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReading:
    """Readings of meters between two times.

    Attributes:
        wall_s: Length. [s]
        meters: Energy by domain.
        missing: Domains without a usable reading, and why.
        power: Power over time, domain by domain.
        peak_w: Highest average over a second by domain. [W]
        utilization: Average share busy by component.
        rated_w: Rated power of the domains that were read; None if one of them has none. [W]
        needs_s: How long a window must be for the slowest sensor refused; 0 if none was. [s]
        notes: About the window as a whole.
    """

    wall_s: float
    meters: tuple[MeterReading, ...] = ()
    missing: tuple[str, ...] = ()
    power: tuple[PowerSeries, ...] = ()
    peak_w: dict[str, float] = field(default_factory=dict)
    utilization: dict[str, float] = field(default_factory=dict)
    rated_w: float | None = None
    needs_s: float = 0.0
    notes: tuple[str, ...] = ()


def origin_of(meters: Sequence[MeterReading]) -> RunOrigin:
    """Return the origin of a run's energy: an estimate if any of its parts is one."""
    if not meters:
        return RunOrigin.UNREAD
    is_estimate = any(reading.is_estimate for reading in meters)
    return RunOrigin.ESTIMATED if is_estimate else RunOrigin.MEASURED


def _anything(device: str) -> bool:
    del device
    return True


class Window:
    """Reads meters periodically from `start` until `stop`; each physical device once.

    Args:
        meters: Where two of them name the same device, the first reads it.
        interval_s: Time between two readings. [s]
        missing: What discovery found missing: `cpu0: why`.
        claim: Asked with each device, whether this process reads its energy.
        watch: Called in the thread that reads, after each reading.
        clock: The monotonic clock.
        wall_clock: Watched for jumps.

    Attributes:
        started_s: When reading began. [s]
        stopped_s: When it ended. [s]
    """

    def __init__(
        self,
        meters: Iterable[Meter],
        *,
        interval_s: float = 0.1,
        missing: Sequence[str] = (),
        claim: Callable[[str], bool] = _anything,
        watch: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._interval_s = interval_s
        self._missing = tuple(f"{_NODE}/{line}" for line in missing)
        self._clock, self._wall_clock = clock, wall_clock
        self._watch = watch
        self._meters: list[Meter] = []
        self._tracks: dict[tuple[int, str], Track] = {}
        self._kinds: dict[tuple[int, str], str] = {}
        self._lost: dict[int, tuple[float, str]] = {}
        self._jumps: list[tuple[float, float]] = []
        self._offset_s = math.nan
        self.started_s = self.stopped_s = math.nan
        self._stop = threading.Event()
        self._adding = threading.Lock()  # readings come from a thread, questions from any
        self._thread: threading.Thread | None = None
        self._join(meters, claim)

    def _join(self, meters: Iterable[Meter], claim: Callable[[str], bool]) -> None:
        devices: set[tuple[str, Quantity]] = set()
        for number, meter in enumerate(meters):
            self._meters.append(meter)
            for domain in meter.domains():
                is_energy = domain.quantity is not Quantity.SHARE
                if (domain.device, domain.quantity) in devices:
                    continue
                devices.add((domain.device, domain.quantity))
                if is_energy and not claim(domain.device):
                    self._missing += (f"{_NODE}/{domain.name}: {READ_ELSEWHERE}",)
                else:
                    self._tracks[number, domain.name] = Track(self._apart(domain, meter.kind))
                    self._kinds[number, domain.name] = meter.kind

    def _apart(self, domain: Domain, kind: str) -> Domain:
        """Return a domain under a unique name: vendors number their devices each from 0."""
        taken = {track.domain.name for track in self._energies()}
        if domain.quantity is Quantity.SHARE or domain.name not in taken:
            return domain
        stem = domain.name.rstrip(digits)
        free = next(name for n in count() if (name := f"{stem}{n}") not in taken)
        notes = [domain.note] if domain.note else []
        return replace(domain, name=free, note="; ".join([*notes, f"{domain.name} of {kind}"]))

    def _energies(self) -> Iterator[Track]:
        """Yield the readings of every energy."""
        for track in self._tracks.values():
            if track.domain.quantity is not Quantity.SHARE:
                yield track

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The domains that are read, each device once."""
        return tuple(track.domain for track in self._tracks.values())

    def start(self) -> None:
        """Read once, then keep reading in a thread."""
        self.begin()
        self._thread = threading.Thread(target=self._run, name="wattree-meters", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and read for the last time; a second call does nothing."""
        if not math.isnan(self.stopped_s):
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.end()

    def begin(self) -> None:
        """Read for the first time, without a thread."""
        self.started_s = self._clock()
        self.poll()

    def end(self) -> None:
        """Read for the last time."""
        self.poll()
        self.stopped_s = self._clock()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.poll()
            if self._watch is not None:
                self._watch()

    def poll(self) -> None:
        """Read every meter once. Failing meters are retried at the next poll."""
        self._watch_wall_clock()
        for number, meter in enumerate(self._meters):
            try:
                readings = meter.read()
            except MeterError as error:
                self._lost.setdefault(number, (self._clock(), str(error)))
                continue
            self._lost.pop(number, None)
            with self._adding:
                for reading in readings:
                    track = self._tracks.get((number, reading.domain))
                    if track is not None:
                        now_s = self._clock()
                        track.add(reading.at_s, reading.value, line=reading.line, now_s=now_s)

    def _watch_wall_clock(self) -> None:
        now_s = self._clock()
        offset_s = self._wall_clock() - now_s
        if abs(offset_s - self._offset_s) > _JUMP_S:
            self._jumps.append((now_s, offset_s - self._offset_s))
        self._offset_s = offset_s

    def tracks(self) -> dict[str, Track]:
        """Return the readings of every energy, by domain."""
        return {f"{_NODE}/{track.domain.name}": track for track in self._energies()}

    def recent_w(self, seconds: float) -> tuple[float | None, bool]:
        """Return the power over the last readings [W], and whether part of it is estimated.

        It is what all domains drew together, those of a node with a meter of its own left out but
        for that meter; None while no domain was read twice.

        Args:
            seconds: How far back. [s]
        """
        with self._adding:
            energies = {track.domain.name: track for track in self._energies()}
            if BOARD in energies:
                energies = {BOARD: energies[BOARD]}
            found = []
            for track in energies.values():
                end_s = track.changed_s
                begin_s = max(end_s - seconds, track.first_s)
                if end_s > begin_s:  # NaN before the second reading
                    watts = track.between(begin_s, end_s) / (end_s - begin_s)
                    found.append((watts, track.domain.is_estimate))
        total_w = math.fsum(watts for watts, _ in found) if found else None
        return total_w, any(is_estimate for _, is_estimate in found)

    def between(self, start_s: float | None = None, end_s: float | None = None) -> WindowReading:
        """Return the readings between two times; of the whole window if none are given."""
        start_s = self.started_s if start_s is None else start_s
        end_s = self.stopped_s if end_s is None else end_s
        meters, power, missing = [], [], list(self._missing)
        peaks: dict[str, float] = {}
        shares: dict[str, list[float]] = {}
        rated: list[float | None] = []
        needs_s = 0.0
        for (number, name), track in self._tracks.items():
            if track.domain.quantity is Quantity.SHARE:
                if end_s > start_s and track.period_s is not None:
                    share = track.between(start_s, end_s) / (end_s - start_s)
                    shares.setdefault(name.rstrip("0123456789"), []).append(min(share, 1.0))
                continue
            domain = f"{_NODE}/{track.domain.name}"
            fault, least_s = _fault(track, start_s, end_s, self._lost.get(number), self._interval_s)
            needs_s = max(needs_s, least_s)
            if fault:
                missing.append(f"{domain}: {fault}")
                continue
            rated.append(track.domain.rated_w)
            at_s, watts = track.series(start_s, end_s, most=_MOST_POINTS)
            power.append(PowerSeries(domain=domain, at_s=at_s, watts=watts))
            peaks[domain] = track.peak(start_s, end_s, over_s=PEAK_OVER_S)
            meters.append(
                MeterReading(
                    domain=domain,
                    meter=self._kinds[number, name],
                    energy_j=track.between(start_s, end_s),
                    resolution_j=track.resolution_j,
                    period_s=track.period_s,
                    is_estimate=track.domain.is_estimate,
                    note="; ".join(_notes(track, start_s, end_s, self._lost.get(number))),
                )
            )
        return WindowReading(
            wall_s=end_s - start_s,
            meters=tuple(meters),
            missing=tuple(missing),
            power=tuple(power),
            peak_w=peaks,
            utilization={name: sum(found) / len(found) for name, found in shares.items()},
            rated_w=sum_if_all(rated),
            needs_s=needs_s,
            notes=tuple(
                f"the wall clock jumped by {by_s:+.1f} s at {at_s - start_s:.1f} s; times here are "
                "of the monotonic clock"
                for at_s, by_s in self._jumps
                if start_s <= at_s <= end_s
            ),
        )


def sum_if_all(rated: Sequence[float | None]) -> float | None:
    """Return the sum of numbers; None if one is missing or there are none."""
    known = [watts for watts in rated if watts is not None]
    return math.fsum(known) if known and len(known) == len(rated) else None


def _fault(
    track: Track,
    start_s: float,
    end_s: float,
    lost: tuple[float, str] | None,
    interval_s: float,
) -> tuple[str, float]:
    """Return why a domain's readings are unusable, and the window length that it needs. [s]"""
    if absence := _misread(track, start_s, end_s) or _absence(track, start_s, end_s, lost):
        return absence, 0.0
    length_s = end_s - start_s
    period_s = track.domain.updates_every_s or track.period_s or max(length_s, 0.1)
    if track.points <= LEAST_UPDATES:
        # The first and the last reading of a short window lie as far apart as it is long, which
        # says nothing of the sensor: between them it is asked every interval.
        period_s = max(period_s, interval_s)
    needs_s = LEAST_UPDATES * period_s
    if length_s < needs_s * (1 - 1e-6):
        return (
            f"{length_s:.2f} s are too short: it was updated every {period_s:.2g} s and needs "
            f"{LEAST_UPDATES} updates, so at least {needs_s:.2g} s",
            needs_s,
        )
    return ("was read only once", needs_s) if track.period_s is None else ("", 0.0)


def _misread(track: Track, start_s: float, end_s: float) -> str:
    """Return why all readings but one, or all, are unusable; empty if more are or none came."""
    notes = track.notes(start_s, end_s) if track.points <= 1 else ()
    usable = "only one" if track.points else "no"
    return f"{usable} reading can be used: it {'; it '.join(notes)}" if notes else ""


def _absence(track: Track, start_s: float, end_s: float, lost: tuple[float, str] | None) -> str:
    """Return why the readings do not cover this time; empty if they do."""
    if math.isnan(track.first_s):
        return lost[1] if lost else "nothing was read"
    if track.first_s >= end_s:
        late_s = track.first_s - end_s
        unit = "; are its times in seconds?" if late_s > _NO_CLOCK_S else ""
        return f"the first reading is {late_s:.1f} s after the end{unit}"
    if track.changed_s <= start_s and track.period_s is not None:
        return f"the last reading is {start_s - track.changed_s:.1f} s before the start"
    if track.domain.quantity is Quantity.POWER and track.points > 1 and track.highest == 0:
        return "it read 0 W all the time: it does not read what it is connected to"
    is_still = track.updates == 0 and track.domain.quantity is Quantity.ENERGY
    if is_still and end_s - start_s >= _STUCK_S:
        return f"its counter is stuck: it did not change in {end_s - start_s:.1f} s"
    return ""


def _notes(track: Track, start_s: float, end_s: float, lost: tuple[float, str] | None) -> list[str]:
    notes = [track.domain.note] if track.domain.note else []
    notes += track.notes(start_s, end_s)
    usual_s = 2 * (track.period_s or 0.0) + _LATE_S
    if lost is not None:
        notes.append(f"was lost at {lost[0] - start_s:.1f} s: {lost[1]}")
    if (late_s := track.first_s - start_s) > usual_s:
        notes.append(f"nothing was read in the first {late_s:.1f} s, which are not counted")
    if (still_s := end_s - track.changed_s) > usual_s:
        at_s = track.changed_s - start_s
        notes.append(f"did not change in the last {still_s:.1f} s, from {at_s:.1f} s on")
    return notes
