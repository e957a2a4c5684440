"""Rounds of measurements within a time budget, recorded one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattree.measure.profile.crew import Crew
from wattree.measure.profile.journal import Journal
from wattree.measure.profile.machine import Machine, machine_busy_s
from wattree.measure.profile.points import ProfilePoint

#: Rounds over all points: a median of five tells a disturbed measurement from the others.
ROUNDS = 5
#: Of a point's time, what goes to its window; the rest is set-up, warm-up and waiting for others.
_WINDOW_SHARE = 0.4
_WINDOW_S = (0.02, 0.5)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSession:
    """Summary of the measuring.

    Attributes:
        done, wanted: Measurements in the journal and in all rounds.
        foreign_cores: Cores that other programs kept busy meanwhile, on average.
    """

    done: int
    wanted: int
    foreign_cores: float


def measure_points(
    points: Sequence[ProfilePoint],
    journal: Journal,
    machine: Machine,
    *,
    seconds: float,
    progress: Progress,
) -> ProfileSession:
    """Measure the points missing from the journal, by round, until complete or out of time.

    Rounds are interleaved: whatever drifts (clocks, other programs) falls on all points alike.

    Args:
        points: Of one round.
        journal: What is there; takes each measurement as soon as it is made.
        machine: At hand.
        seconds: Budget. [s]
        progress: Called with the name of the current measurement, the number done and the total.

    Raises:
        RunError: A rank ended, or does not answer.
    """
    began = time.monotonic()
    todo = [
        (number, point)
        for number in range(ROUNDS)
        for point in points
        if not journal.has(point, number)
    ]
    wanted = ROUNDS * len(points)
    if not todo:
        return ProfileSession(done=wanted, wanted=wanted, foreign_cores=0.0)
    window_s = seconds / wanted * _WINDOW_SHARE
    window_s = min(max(window_s, _WINDOW_S[0]), _WINDOW_S[1])
    with Crew(
        ranks=machine.ranks, threads=machine.threads, accelerator=machine.accelerator
    ) as crew:
        journal.note_resident(crew.resident_bytes)
        busy, own, at = machine_busy_s(), crew.cpu_s(), time.monotonic()
        for number, point in todo:
            if time.monotonic() - began > seconds:
                break
            if journal.has(point, number):
                continue  # skipped in an earlier round
            progress(point.key, _done(journal, points), wanted)
            found = crew.seconds(point, window_s)
            if isinstance(found, str):
                journal.skip(point, found)
            else:
                journal.add(point, number, found)
        elapsed = max(time.monotonic() - at, 1e-3)
        after = machine_busy_s()
        others = 0.0
        if busy is not None and after is not None:
            others = max(after - busy - (crew.cpu_s() - own), 0.0) / elapsed
    return ProfileSession(done=_done(journal, points), wanted=wanted, foreign_cores=others)


def _done(journal: Journal, points: Sequence[ProfilePoint]) -> int:
    return sum(journal.has(point, number) for point in points for number in range(ROUNDS))
