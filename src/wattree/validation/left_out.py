"""Errors of predictions of rows that the fit never saw, each with the spread that was foretold.

Hold-outs are those of `hold_outs`; here each left-out row also says how far off it was foretold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.accounts.interval import constants_of, spread_of
from wattree.accounts.known import EvidenceClass, JobFacts, Measured
from wattree.cost import Calibration
from wattree.trace import IntervalPart
from wattree.validation.calibrate import CalibrationFit, FitRow, linearized
from wattree.validation.hold_outs import calibration_without, hold_outs
from wattree.validation.priors import Prior

Floats = NDArray[np.float64]

#: Hold-outs that count: single models are parts of their families.
_KINDS = ("source", "device", "scale", "model family", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutError:
    """One row as it is predicted by a fit that never saw it.

    Attributes:
        row: The row.
        facts: Of its job.
        hold_out: By what it was left out: `source`, `device`, `scale`, `model family` or `random`.
        error: Logarithm of predicted over measured step time.
        parts: What the interval of the prediction rests on, without residuals and levels.
        levels: Class of constants → level at which the look-up found them.
        known: Class of evidence.
    """

    row: FitRow
    facts: JobFacts
    hold_out: str
    error: float
    parts: Mapping[str, IntervalPart]
    levels: Mapping[str, str]
    known: EvidenceClass


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRows:
    """Rows of one fit, what was predicted for them, and the fit's linearization.

    Attributes:
        rows: The rows.
        calibration: Constants of the fit.
        priors: Of what was fitted.
        parts: Of each row's prediction.
        facts: Of each row's job.
    """

    rows: Sequence[FitRow]
    calibration: Calibration
    priors: Mapping[str, Prior]
    parts: Sequence[Mapping[str, IntervalPart]]
    facts: Sequence[JobFacts]


def left_out_errors(
    fitted: FittedRows, progress: Callable[[str, int, int], None]
) -> Iterator[LeftOutError]:
    """Yield the error of every row in every hold-out that it is part of."""
    full = _linearization(fitted, progress)
    cases = [case for case in hold_outs(fitted.rows) if case.kind in _KINDS]
    for done, case in enumerate(cases):
        without = calibration_without(case, fitted.rows, full)
        kept = measured_by([fitted.facts[i] for i in np.flatnonzero(case.seen).tolist()])
        for index in np.flatnonzero(case.held).tolist():
            yield _error(fitted, index, case.kind, without, kept)
        progress("leaving rows out", done + 1, len(cases))


def _linearization(fitted: FittedRows, progress: Callable[[str, int, int], None]) -> CalibrationFit:
    """Return a fit that has ended, with what its hold-outs need."""
    names = tuple(fitted.priors)
    start = np.full((len(fitted.rows), len(names)), np.nan)
    logs, jacobian = linearized(fitted.rows, fitted.calibration, start, names, progress=progress)
    return CalibrationFit(
        calibration=fitted.calibration,
        spread={name: fitted.calibration.constants[name].spread for name in names},
        logs=logs,
        jacobian=jacobian,
        priors=fitted.priors,
    )


def measured_by(facts: Iterable[JobFacts]) -> Measured:
    """Return what has rows, of the jobs that were measured."""
    jobs = list(facts)
    return Measured(
        software=frozenset(job.software for job in jobs),
        devices=frozenset(job.device for job in jobs),
        models=frozenset((job.kind, job.vocabulary) for job in jobs),
        largest=max((job.devices for job in jobs), default=0.0),
    )


def _error(
    fitted: FittedRows,
    index: int,
    hold_out: str,
    without: Calibration,
    measured: Measured,
) -> LeftOutError:
    row = fitted.rows[index]
    predicted = math.log(row.estimate_s(without))
    setting = row.setting(without)
    constants = constants_of(setting, row.expressed.job.cluster.node.device)
    facts = fitted.facts[index]
    shares = {n: p.share for n, p in fitted.parts[index].items() if n in constants}
    return LeftOutError(
        row=row,
        facts=facts,
        hold_out=hold_out,
        error=predicted - math.log(row.measured_s),
        parts={
            name: IntervalPart(
                share=share,
                spread=math.hypot(
                    *(spread_of(each, facts.device, measured, {}) for each in constants[name])
                ),
            )
            for name, share in shares.items()
        },
        levels={
            name: measured.level(found[0], facts.device)
            for name in shares
            if (found := constants[name]) and found[0] is not None
        },
        known=facts.known(measured, shares, constants),
    )
