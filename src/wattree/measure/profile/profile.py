"""`wattree profile`: measure this machine, fit the cost models' constants, write them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattree.cost import load_calibration
from wattree.errors import RunError
from wattree.measure.profile.crew import Crew
from wattree.measure.profile.families import Findings, findings_of
from wattree.measure.profile.journal import Journal
from wattree.measure.profile.machine import Machine, busy_cores, describe_machine, machine_busy_s
from wattree.measure.profile.points import ProfilePoint, points_for
from wattree.measure.profile.write import files_of, full_names, write_profile

#: Rounds over all points: a median of five tells a disturbed measurement from the others.
ROUNDS = 5
#: Of a point's time, what goes to its window; the rest is set-up, warm-up and waiting for others.
_WINDOW_SHARE = 0.4
_WINDOW_S = (0.02, 0.5)

Progress = Callable[[str, int, int], None]


#: Of all cores, what others may keep busy before a warning is due; and of a median, how far rounds
#: may lie apart.
_BUSY_SHARE, _SPREAD = 0.1, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProfile:
    """A measured machine.

    Attributes:
        findings: Rates, constants and how well they fit.
        rounds: Finished rounds over all points.
        skipped: Point → why the machine cannot do it.
        warnings: What speaks against the figures.
    """

    machine: Machine
    findings: Findings
    session: ProfileSession
    rounds: int
    written: tuple[Path, ...]
    skipped: Mapping[str, str]
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the profile in plain types; units are in the names."""
        found = self.findings
        return {
            "machine": self.machine.as_json(),
            "peak_flop_per_s": dict(found.peak_flop_per_s),
            "memory_bytes_per_s": found.memory_bytes_per_s,
            "bus_bytes_per_s": found.bus_bytes_per_s,
            "alpha_s": found.alpha_s,
            "copy_bytes_per_s": found.copy_bytes_per_s,
            "sample_s": found.collate_s,
            "measurements": self.session.done,
            "measurements_of_all_rounds": self.session.wanted,
            "constants": {
                name: {"value": each.value, "evidence": each.evidence, "source": each.source}
                for name, each in full_names(self.machine, found.constants).items()
            },
            "fits": [
                {
                    "family": fit.family,
                    "points": fit.points,
                    "error": fit.error,
                    "held_out_error": fit.held_out,
                    "rows": [
                        {"point": key, "measured_s": measured, "fitted_s": fitted, "spread": spread}
                        for key, (measured, fitted, spread) in fit.rows.items()
                    ],
                }
                for fit in found.fits
            ],
            "skipped": dict(self.skipped),
            "files": [str(path) for path in self.written],
            "warnings": list(self.warnings),
        }


def profile_machine(
    out: Path,
    *,
    minutes: float = 3.0,
    ranks: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> MachineProfile:
    """Measure this machine and write its calibration, device and node files next to each other.

    Every measurement is written as soon as it is made, to a file next to `out`; a later call
    with the same `out` continues from there.

    Args:
        out: The calibration's file.
        minutes: Time for measuring. [min]
        ranks: Processes that work at once; None for one on each GPU, or two on a CPU.
        threads: Of each; None for the cores over the ranks.
        progress: Called with the name of the current measurement, the number done and the total.

    Raises:
        RunError: PyTorch is missing, or the time did not suffice for one round.
        OutputError: A file cannot be written.
    """
    machine = describe_machine(ranks=ranks, threads=threads)
    files = files_of(out)
    foreign = busy_cores()
    journal = Journal(files.measurements, machine)
    points = points_for(
        precisions=machine.precisions, ranks=machine.ranks, accelerator=machine.accelerator
    )
    session = measure_points(
        points, journal, machine, seconds=60.0 * minutes, progress=progress or _silent
    )
    lacking = sum(not journal.has(point, 0) for point in points)
    if lacking:
        raise RunError(
            "wattree profile",
            [
                f"{len(points) - lacking} of {len(points)} points were measured in {minutes:g} "
                "minutes; call it again to go on, or give it more --minutes"
            ],
        )
    findings = findings_of(journal, machine, load_calibration())
    return MachineProfile(
        machine=machine,
        findings=findings,
        session=session,
        rounds=min(sum(journal.has(p, n) for n in range(ROUNDS)) for p in points),
        written=(*write_profile(files, machine, findings), files.measurements),
        skipped=dict(journal.skipped),
        warnings=_warnings(machine, journal, session, foreign),
    )


def _silent(what: str, done: int, wanted: int) -> None:
    """Report nothing."""
    del what, done, wanted


def _warnings(
    machine: Machine, journal: Journal, session: ProfileSession, foreign: float
) -> tuple[str, ...]:
    notes = []
    others = max(foreign, session.foreign_cores)
    if others > _BUSY_SHARE * machine.cores:
        notes.append(
            f"other programs kept {others:.1f} of {machine.cores} cores busy: times of computing "
            "leave that out, those of exchanges cannot; measure again on a quiet machine"
        )
    spread = sorted(
        (each.spread, key) for key, each in journal.times.items() if len(each.rounds) > 1
    )
    noisy = [key for found, key in spread if found > _SPREAD]
    if len(noisy) > len(spread) / 4:
        notes.append(
            f"{len(noisy)} of {len(spread)} points differ by more than {_SPREAD:.0%} between "
            f"rounds, most of all {noisy[-1]} ({spread[-1][0]:.0%})"
        )
    if machine.share > 1:
        notes.append(
            f"{machine.ranks * machine.threads} computing threads share {machine.cores} cores: the "
            "device is what one rank has of them while all compute"
        )
    notes += [f"{key}: not measured ({why})" for key, why in journal.skipped.items()]
    return tuple(notes)


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
        journal: What is there; takes each measurement as soon as it is made.
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
