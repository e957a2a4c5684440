"""Fit the constants of the cost models to measured step times, and leave sources out in turn.

Every constant is fitted as a logarithm with a prior, by Gauss-Newton steps on the closed form of
`closed_form.estimate`; each row carries the ratio of simulated to closed-form time, remade between
rounds, so that what is fitted is the simulation. Rows that repeat one configuration count less.

The rows enter only through families and device types: no constant belongs to a row, a model or a
size. The spreads of the priors are few and were chosen by the error on left-out sources
(docs/design/0007-priors.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattree.closed_form.expressible import is_expressible
from wattree.closed_form.strategies import Screened, screened
from wattree.cost import Calibration, software_family
from wattree.predict import Degrees, Setting, predicted
from wattree.strategy import StrategyOptions
from wattree.validation.express import Expressed
from wattree.validation.priors import Prior

Floats = NDArray[np.float64]

#: Weight of a row whose configuration occurs n times: n**-0.35 (a scaling series is one fact).
_REPEAT_EXPONENT = 0.35
#: Standard deviation of a row's logarithmic error that the fit assumes.
_ROW_NOISE = 0.05
#: Errors beyond this many deviations pull linearly, not quadratically (Huber).
_HUBER = 4.0
_STEP = 0.02
_ROUNDS = 4
#: Derivatives below which a row is taken not to depend on a constant.
_NEGLIGIBLE = 1e-4
#: Logarithmic steps of constants below which estimates are not made again.
_MOVED = 0.005


@dataclass(slots=True, kw_only=True)
class FitRow:
    """A measured row on its way through the fit.

    Attributes:
        expressed: The row as a job.
        measured_s: Measured step time. [s]
        setting: For any calibration: the job's setting under it.
        ratio: Simulated over closed-form step time at the last round's constants.
        screen: Block programs of its strategy, compiled once.
    """

    expressed: Expressed
    measured_s: float
    setting: Callable[[Calibration], Setting]
    ratio: float = 1.0
    screen: Screened | None = field(default=None, repr=False)

    def estimate_s(self, calibration: Calibration) -> float:
        """Return the estimated step time under `calibration`; what has no closed form is executed.

        [s]
        """
        setting, options = self.setting(calibration), self.expressed.job.strategy
        assert isinstance(options, StrategyOptions)
        if not is_expressible(options, setting.job.cluster):
            executed = predicted(setting, options, detail=False)
            return self.ratio * executed.result.step_time_s
        if self.screen is None:
            degrees = Degrees.of([options], self.expressed.job.data.global_batch)
            self.screen = screened(setting, options, degrees)
        return self.ratio * float(self.screen.estimates(setting).step_time_s[0])

    @property
    def key(self) -> tuple[object, ...]:
        """Return what tells configurations apart, whatever the release that ran them."""
        row, job = self.expressed.row, self.expressed.job
        return (
            row.source_id,
            row.model_name,
            row.accelerator,
            job.precision,
            job.data,
            job.strategy,
            tuple(sorted((k, str(v)) for k, v in job.traits.items())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFit:
    """Result of a fit.

    Attributes:
        calibration: With the fitted constants in place.
        spread: Posterior standard deviation of each fitted logarithm.
        jacobian: Of log step time by log constant, `(rows, constants)`.
        priors: Of the constants, in the order of the Jacobian's columns.
    """

    calibration: Calibration
    spread: Mapping[str, float]
    jacobian: Floats
    priors: Mapping[str, Prior]


def fit(
    rows: Sequence[FitRow],
    start: Calibration,
    priors: Mapping[str, Prior],
    *,
    rounds: int = _ROUNDS,
    progress: Callable[[str, int, int], None] | None = None,
) -> CalibrationFit:
    """Fit the constants that have `priors` to `rows`.

    Args:
        rows: Measured rows.
        start: Calibration to begin from; its other constants are kept.
        priors: Of the constants to fit, by name.
        rounds: Gauss-Newton steps.
        progress: Called with (stage, done, total).
    """
    names = tuple(priors)
    weights = row_weights(rows)
    calibration = start
    jacobian = np.full((len(rows), len(names)), np.nan)
    for done in range(rounds):
        logs, jacobian = linearized(rows, calibration, jacobian, names)
        theta = solved(rows, logs, jacobian, weights, calibration=calibration, priors=priors)
        calibration = calibration.replaced(dict(zip(names, np.exp(theta), strict=True)))
        if progress is not None:
            progress("fitting", done + 1, rounds)
    spread = posterior(jacobian, weights, priors)
    return CalibrationFit(
        calibration=calibration,
        spread=dict(zip(names, spread, strict=True)),
        jacobian=jacobian,
        priors=priors,
    )


def leave_sources_out(
    rows: Sequence[FitRow],
    full: CalibrationFit,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Calibration]:
    """Return, for each source, a calibration fitted without its rows.

    Starts from the priors' side of the full fit: two Gauss-Newton steps with the left-out rows
    removed, the second on the full fit's Jacobian (the model is close to linear in logarithms).
    """
    result = {}
    sources = sorted({row.expressed.row.source_id for row in rows})
    logs = np.log([row.estimate_s(full.calibration) for row in rows])
    for done, source in enumerate(sources):
        keep = np.array([row.expressed.row.source_id != source for row in rows])
        kept = [row for row, inside in zip(rows, keep, strict=True) if inside]
        weights, jacobian, left = row_weights(kept), full.jacobian[keep], full.calibration
        here = logs[keep]
        for again in (True, False):
            theta = solved(kept, here, jacobian, weights, calibration=left, priors=full.priors)
            before, values = left, dict(zip(full.priors, map(float, np.exp(theta)), strict=True))
            left = before.replaced(values)
            if again:
                moved = [
                    name
                    for name, value in values.items()
                    if abs(math.log(value / before.constants[name].value)) > _MOVED
                ]
                here = _again(kept, here, left, moved)
        result[source] = left
        if progress is not None:
            progress("leaving sources out", done + 1, len(sources))
    return result


def _again(
    rows: Sequence[FitRow], logs: Floats, calibration: Calibration, moved: Sequence[str]
) -> Floats:
    """Return log estimates, made again for rows that depend on constants that moved."""
    return np.array(
        [
            math.log(row.estimate_s(calibration)) if any(_touches(n, row) for n in moved) else log
            for row, log in zip(rows, logs, strict=True)
        ]
    )


def row_weights(rows: Sequence[FitRow]) -> Floats:
    """Return the weight of each row: configurations that repeat count less each."""
    counts = Counter(row.key for row in rows)
    return np.array([counts[row.key] ** -_REPEAT_EXPONENT for row in rows])


def linearized(
    rows: Sequence[FitRow],
    calibration: Calibration,
    before: Floats,
    names: Sequence[str],
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Floats, Floats]:
    """Return log estimates and their derivatives by log constants.

    What a row hardly depended on `before` (NaN: not known) is not derived again.
    """
    logs = np.log([row.estimate_s(calibration) for row in rows])
    jacobian = np.where(np.abs(before) < _NEGLIGIBLE, before, 0.0)
    for column, name in enumerate(names):
        value = calibration.constants[name].value
        moved = calibration.replaced({name: value * math.exp(_STEP)})
        for index, row in enumerate(rows):
            known = abs(before[index, column]) < _NEGLIGIBLE
            if not known and _touches(name, row):
                jacobian[index, column] = (math.log(row.estimate_s(moved)) - logs[index]) / _STEP
        if progress is not None:
            progress("deriving", column + 1, len(names))
    return logs, jacobian


def _touches(name: str, row: FitRow) -> bool:
    """Whether a constant can matter to a row: its device, its family, or all."""
    scope, rest = name.split(".", 1)
    job = row.expressed.job
    device = job.cluster.node.device
    scopes = {"device": device.name, "family": job.software, "architecture": device.architecture}
    if scope in scopes:
        return rest.startswith(f"{scopes[scope]}.")
    if name == "general.replicate_s":
        return isinstance(job.strategy, StrategyOptions) and job.strategy.parallelism.single_process
    if name == "general.blocking_launch_s":
        return software_family(job.software).with_traits(job.traits).launch_blocking
    return bool(row.expressed.row.n_experts) or ".moe_" not in name


def solved(
    rows: Sequence[FitRow],
    logs: Floats,
    jacobian: Floats,
    weights: Floats,
    *,
    calibration: Calibration,
    priors: Mapping[str, Prior],
) -> Floats:
    """Return the constants' logarithms that minimize robust errors plus priors, linearized."""
    names = tuple(priors)
    measured = np.log([row.measured_s for row in rows])
    theta = np.log([calibration.constants[name].value for name in names])
    prior = np.log([priors[name].value for name in names])
    precision = np.array([priors[name].spread for name in names]) ** -2.0
    target = measured - logs + jacobian @ theta
    solution = theta
    for _ in range(30):  # iteratively reweighted: Huber's loss
        residual = np.abs(target - jacobian @ solution) / _ROW_NOISE
        robust = np.where(residual > _HUBER, _HUBER / np.maximum(residual, 1e-12), 1.0)
        w = weights * robust / _ROW_NOISE**2
        normal = (jacobian * w[:, None]).T @ jacobian + np.diag(precision)
        right = (jacobian * w[:, None]).T @ target + precision * prior
        solution = np.linalg.solve(normal, right)
    # Long steps leave the region where the linearization holds.
    return np.asarray(theta + np.clip(solution - theta, -0.7, 0.7))


def posterior(jacobian: Floats, weights: Floats, priors: Mapping[str, Prior]) -> Floats:
    """Return the standard deviations of the constants' logarithms after the fit."""
    precision = np.array([prior.spread for prior in priors.values()]) ** -2.0
    normal = (jacobian * (weights / _ROW_NOISE**2)[:, None]).T @ jacobian + np.diag(precision)
    return np.asarray(np.sqrt(np.diag(np.linalg.inv(normal))))
