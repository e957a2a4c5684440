"""Errors of predictions of rows excluded from the fit, each with its predicted spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from wattree.accounts.constant_classes import constants_of
from wattree.accounts.interval import constant_parts, training_parts
from wattree.accounts.known import EvidenceClass, JobFacts, KnownRows, group_of
from wattree.cost import Calibration, FoundConstant
from wattree.trace import IntervalPart
from wattree.validation.calibrate import CalibrationFit, FitRow
from wattree.validation.hold_outs import calibration_without, hold_outs

#: Hold-out of runs that no fit has: those of published reports, by who published them.
PUBLISHED = "published"
#: The same, of jobs that were written from a publication alone, before they were predicted.
AS_WRITTEN = "as first written"
#: The same of recipes with published speeds, by model.
RECIPES = "recipes"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenError:
    """Error of the prediction of a run that the fit did not see.

    Attributes:
        hold_out: Kind of hold-out, as `hold_outs` names them, `PUBLISHED`, `AS_WRITTEN` or
            `RECIPES`.
        group: Which one of the kind.
        error: Logarithm of predicted over measured step time.
        parts: What the interval of the prediction rests on, without residuals and levels.
        levels: Class of constants → level at which the look-up found them.
        known: Class of evidence.
        whole: Whether a whole run was timed, not its steps.
    """

    hold_out: str
    group: str
    error: float
    parts: Mapping[str, IntervalPart]
    levels: Mapping[str, str]
    known: EvidenceClass
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutError(UnseenError):
    """Error of one row under a fit that excluded it.

    Attributes:
        row: The row.
        facts: Of its job.
        at_levels: The parts with levels, as runs of a user's own see it (`training_parts`).
    """

    row: FitRow
    facts: JobFacts
    at_levels: Mapping[str, IntervalPart]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRows:
    """Rows of one fit, and their predictions.

    Attributes:
        rows: The rows.
        full: The fit to all of them.
        parts: Of each row's prediction; empty where it was not simulated.
        facts: Of each row's job.
    """

    rows: Sequence[FitRow]
    full: CalibrationFit
    parts: Sequence[Mapping[str, IntervalPart]]
    facts: Sequence[JobFacts]


def left_out_errors(
    fitted: FittedRows, progress: Callable[[str, int, int], None]
) -> Iterator[LeftOutError]:
    """Yield the error of every row in every hold-out that it is part of."""
    cases = list(hold_outs(fitted.rows))
    for done, case in enumerate(cases):
        without = calibration_without(case, fitted.rows, fitted.full)
        seen = measured_by(fitted.facts[i] for i in np.flatnonzero(case.seen).tolist())
        for index in np.flatnonzero(case.held).tolist():
            yield _error(fitted, index, (case.kind, case.name), without, seen)
        progress("holding rows out", done + 1, len(cases))


def seen_errors(fitted: FittedRows) -> Iterator[LeftOutError]:
    """Yield the error of every row under the fit that included it."""
    measured = measured_by(fitted.facts)
    for index in range(len(fitted.rows)):
        yield _error(fitted, index, ("nothing", "all"), fitted.full.calibration, measured)


def measured_by(facts: Iterable[JobFacts]) -> KnownRows:
    """Return what has rows, of jobs of one group that were measured."""
    jobs = list(facts)
    return KnownRows(
        group=group_of(jobs[0].kind),
        forms=frozenset(job.form for job in jobs),
        software=frozenset(job.software for job in jobs),
        vendors=frozenset(job.vendor for job in jobs),
        devices=frozenset(job.device for job in jobs),
        models=frozenset((job.kind, job.vocabulary) for job in jobs),
        largest=max((job.devices for job in jobs), default=0.0),
    )


def _error(
    fitted: FittedRows,
    index: int,
    case: tuple[str, str],
    without: Calibration,
    measured: KnownRows,
) -> LeftOutError:
    row, facts = fitted.rows[index], fitted.facts[index]
    setting = row.setting(without)
    constants = constants_of(setting, row.expressed.job.cluster.node.device)
    unseen = unseen_error(
        math.log(row.estimate_s(without) / row.measured_s),
        facts,
        fitted.parts[index],
        constants,
        measured,
        case=case,
    )
    shares = {name: part.share for name, part in unseen.parts.items()}
    levels = constant_parts(shares, constants, facts.device, measured, without.residuals.spreads)
    return LeftOutError(
        **{field.name: getattr(unseen, field.name) for field in fields(unseen)},
        row=row,
        facts=facts,
        at_levels=training_parts(setting, levels, constants, facts.device, measured),
    )


def unseen_error(
    error: float,
    facts: JobFacts,
    parts: Mapping[str, IntervalPart],
    constants: Mapping[str, tuple[FoundConstant | None, ...]],
    measured: KnownRows,
    *,
    case: tuple[str, str],
) -> UnseenError:
    """Return the error of a prediction with what its interval rests on.

    Args:
        error: Logarithm of predicted over measured step time.
        facts: Of the job.
        parts: Of the prediction, for their shares.
        constants: That stand for each class.
        measured: What has rows.
        case: Hold-out and its group.
    """
    shares = {name: part.share for name, part in parts.items() if name in constants}
    return UnseenError(
        hold_out=case[0],
        group=case[1],
        error=error,
        parts=constant_parts(shares, constants, facts.device, measured, {}),
        levels={
            name: measured.level(found[0], facts.device)
            for name in shares
            if (found := constants[name]) and found[0] is not None
        },
        known=facts.known(measured, shares, constants),
    )
