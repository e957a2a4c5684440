"""`wattree profile`: measure this machine, fit the cost models' constants, write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattree.cost import load_calibration
from wattree.errors import RunError
from wattree.measure.profile.families import Findings, findings_of
from wattree.measure.profile.journal import Journal
from wattree.measure.profile.machine import Machine, busy_cores, describe_machine
from wattree.measure.profile.points import points_for
from wattree.measure.profile.session import ROUNDS, ProfileSession, Progress, measure_points
from wattree.measure.profile.write import files_of, full_names, write_profile

#: Of all cores, what others may keep busy before a warning is due; and of a median, how far rounds
#: may lie apart.
_BUSY_SHARE, _SPREAD = 0.1, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProfile:
    """A measured machine.

    Attributes:
        machine: What it is.
        findings: Rates, constants and how well they fit.
        session: How measuring went.
        rounds: Finished rounds over all points.
        written: Files.
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
