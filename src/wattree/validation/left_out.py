"""Errors of predictions of rows that the fit never saw, each with the spread that was foretold.

Rows are left out by source, device, scale, model family and at random. The constants move by the
fit's own linearization (`calibrate`): with the rows of a group removed, one solution of the linear
system says where they go and how sure they are. A device that is left out also loses its own
constants and their priors, so that the look-up finds what other devices have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattree.accounts.interval import constants_of, spread_of
from wattree.accounts.known import EvidenceClass, JobFacts, Measured
from wattree.cost import Calibration, Constant
from wattree.trace import IntervalPart
from wattree.validation.calibrate import FitRow, linearized, posterior, row_weights, solved
from wattree.validation.priors import Prior

Floats = NDArray[np.float64]

#: Devices up to which rows are small, and from which they are large, in the hold-out by scale.
_SMALL, _LARGE = 64, 128
_FOLDS = 5
#: Items of which devices without a constant of their own take the mean of the fitted ones.
POOLED_ITEMS = ("matmul.bf16", "matmul.fp8", "matmul.nvfp4", "attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutError:
    """One row as it is predicted by a fit that never saw it.

    Attributes:
        row: The row.
        facts: Of its job.
        hold_out: By what it was left out: `source`, `device`, `scale`, `family` or `random`.
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
    rows, names = fitted.rows, tuple(fitted.priors)
    start = np.full((len(rows), len(names)), np.nan)
    logs, jacobian = linearized(rows, fitted.calibration, start, names, progress=progress)
    groups = list(_groups(rows))
    for done, (hold_out, left, fitted_on) in enumerate(groups):
        without = _without(fitted, logs, jacobian, fitted_on)
        kept = measured_by([fitted.facts[i] for i in np.flatnonzero(fitted_on).tolist()])
        for index in np.flatnonzero(left).tolist():
            yield _error(fitted, index, hold_out, without, kept)
        progress("leaving rows out", done + 1, len(groups))


def measured_by(facts: Iterable[JobFacts]) -> Measured:
    """Return what has rows, of the jobs that were measured."""
    jobs = list(facts)
    return Measured(
        software=frozenset(job.software for job in jobs),
        devices=frozenset(job.device for job in jobs),
        models=frozenset((job.kind, job.vocabulary) for job in jobs),
        largest=max((job.devices for job in jobs), default=0.0),
    )


def _groups(rows: Sequence[FitRow]) -> Iterator[tuple[str, NDArray[np.bool_], NDArray[np.bool_]]]:
    """Yield hold-outs: what for, the rows that are left out, and those that are fitted."""
    keys: Mapping[str, Callable[[FitRow], str]] = {
        "source": lambda row: row.expressed.row.source_id,
        "device": lambda row: row.expressed.job.cluster.node.device.name,
        "family": lambda row: row.expressed.row.model_family or row.expressed.row.model_name or "",
    }
    for name, key in keys.items():
        own = np.array([key(row) for row in rows])
        for value in sorted(set(own)):
            if not (own == value).all():
                yield name, own == value, own != value
    devices = np.array([row.expressed.job.cluster.devices for row in rows])
    if (devices >= _LARGE).any():
        yield "scale", devices >= _LARGE, devices <= _SMALL
    names = [repr(row.key) for row in rows]  # configurations stay together
    order = {name: i for i, name in enumerate(sorted(set(names)))}
    shuffled = np.random.default_rng(0).permutation(len(order))
    fold = np.array([shuffled[order[name]] % _FOLDS for name in names])
    for number in range(_FOLDS):
        if (fold == number).any():
            yield "random", fold == number, fold != number


def _without(
    fitted: FittedRows, logs: Floats, jacobian: Floats, keep: NDArray[np.bool_]
) -> Calibration:
    """Return the calibration fitted to the rows of `keep` alone, with its spreads."""
    kept = [row for row, inside in zip(fitted.rows, keep, strict=True) if inside]
    weights = row_weights(kept)
    theta = solved(
        kept,
        logs[keep],
        jacobian[keep],
        weights,
        calibration=fitted.calibration,
        priors=fitted.priors,
    )
    spread = posterior(jacobian[keep], weights, fitted.priors)
    constants = dict(fitted.calibration.constants)
    for name, value, own in zip(fitted.priors, np.exp(theta), spread, strict=True):
        constants[name] = replace(constants[name], value=float(value), spread=float(own))
    return replace(fitted.calibration, constants=constants)


def _error(
    fitted: FittedRows,
    index: int,
    hold_out: str,
    without: Calibration,
    measured: Measured,
) -> LeftOutError:
    row = fitted.rows[index]
    if hold_out == "device":
        device = row.expressed.job.cluster.node.device.name
        without = without_device(without, device, fitted.priors)
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


def without_device(
    calibration: Calibration, device: str, priors: Mapping[str, Prior]
) -> Calibration:
    """Return a calibration that knows nothing of a device; means are those of the others."""
    own = f"device.{device}."
    table = {n: c for n, c in calibration.constants.items() if not n.startswith(own)}
    for item in POOLED_ITEMS:
        others = [
            table[name].value for name in priors if name.endswith(f".{item}") and name in table
        ]
        if len(others) > 1:
            table[f"pooled.{item}"] = Constant(
                value=float(np.exp(np.mean(np.log(others)))),
                evidence="fitted",
                source="geometric mean of the fitted devices",
                spread=float(np.std(np.log(others), ddof=1)),
            )
    return replace(calibration, constants=table)
