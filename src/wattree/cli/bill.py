"""Options of `simulate` for whole runs: targets and starts at other hours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wattree.errors import JobError, UnitError
from wattree.units import parse_count, parse_quantity

if TYPE_CHECKING:
    from wattree.job import Job
    from wattree.trace import Result

_MOST_S = 100 * 366 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedOfRun:
    """A run that is asked for.

    Attributes:
        tokens, samples: Its target, at most one of them.
        shift_s: Length of a run to shift within the job's hourly series; 0 for that of the target,
            None where no one asked. [s]
    """

    tokens: float | None = None
    samples: float | None = None
    shift_s: float | None = None

    def answered(self, job: Job, result: Result) -> Result:
        """Return the result with the requested figures of whole runs, as long as the job's.

        Raises:
            JobError: The job has no series that the run fits into.
        """
        from wattree.accounts.bill import run_bill, schedule_shift, with_run

        if self.tokens is not None or self.samples is not None:  # also of a single step
            result = replace(result, run=run_bill(result, job.training.steps))
        else:
            result = with_run(result, job)
        if self.shift_s is not None:
            run_s = self.shift_s
            if not run_s and result.run is not None:
                run_s = result.run.time_s
            result = replace(result, shift=schedule_shift(job, result, run_s))
        return result


def asked_of_run(*, tokens: str | None, samples: str | None, shift: str | None) -> AskedOfRun:
    """Return the requests for whole runs in options.

    Raises:
        JobError: An option is no such count or time, or two contradict each other.
    """
    if tokens is not None and samples is not None:
        raise JobError("--tokens", ["found together with --samples, expected one of them"])
    shift_s = None if shift is None else _length_s(shift)
    if shift_s == 0 and tokens is None and samples is None:
        raise JobError("--shift", ["found 'run', expected --tokens or --samples as well"])
    return AskedOfRun(
        tokens=_count("--tokens", tokens), samples=_count("--samples", samples), shift_s=shift_s
    )


def _count(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    if (value := parse_count(text)) is None:
        raise JobError(
            option, [f"found '{text}', expected a whole count such as 1T, 300B, 90M or 1e12"]
        )
    return value


def _length_s(text: str) -> float:
    """Return the length of a run; 0 for that of the target. [s]"""
    if text.strip() == "run":
        return 0.0
    try:
        found = parse_quantity(text, "s")
    except UnitError as error:
        raise JobError("--shift", [str(error)]) from error
    if not found <= _MOST_S:
        raise JobError("--shift", [f"found '{text}', expected a time up to 100 years, or 'run'"])
    return found
