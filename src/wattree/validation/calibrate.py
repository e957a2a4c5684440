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
from dataclasses import dataclass, field, replace

import numpy as np

from wattree.arrays import Flags, Floats
from wattree.closed_form.expressible import is_expressible
from wattree.closed_form.strategies import Screened, screened
from wattree.cost import Calibration, software_family
from wattree.cost.calibration import BLOCKING_LAUNCH
from wattree.predict import Degrees, Setting, predicted
from wattree.strategy import StrategyOptions
from wattree.validation.express import Expressed
from wattree.validation.priors import Prior

#: Weight of a row whose configuration occurs n times: n**-0.35 (a scaling series is one fact).
_REPEAT_EXPONENT = 0.35
#: Standard deviation of a row's logarithmic error that the fit assumes.
_ROW_NOISE = 0.05
#: The same of a family's factor in one source, around that of the family: sources left out of a fit
#: err by 8 % (language models) and 11 % (others), rows left out at random by 5 and 8 %. It counts
#: where one source has all rows of a family whose prior is no narrower; others hold it anyway.
_SOURCE_NOISE = 0.1
#: Errors beyond this many deviations pull linearly, not quadratically (Huber).
_HUBER = 4.0
_STEP = 0.02
_ROUNDS = 4
#: Logarithmic way of a constant beyond which derivatives are taken again.
_STALE = 0.5
#: Derivatives below which a row is taken not to depend on a constant.
_NEGLIGIBLE = 1e-4


@dataclass(slots=True, kw_only=True)
class FitRow:
    """A measured row during the fit.

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
        """Return the estimated step time under `calibration`; simulated without a closed form.

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
        """Return the key of a configuration, independent of the software release."""
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
        logs: Log estimated step times of the rows.
        jacobian: Their derivatives by log constants, `(rows, constants)`.
        priors: Of the constants, in the order of the Jacobian's columns.
    """

    calibration: Calibration
    spread: Mapping[str, float]
    logs: Floats
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
    jacobian, derived_at = np.full((len(rows), len(names)), np.nan), None
    for done in range(rounds):
        if derived_at is None or _way(derived_at, calibration, names) > _STALE:
            logs, jacobian = linearized(rows, calibration, jacobian, names)
            derived_at = calibration
        else:
            logs = estimated_logs(rows, calibration)
        theta = solved(rows, logs, jacobian, weights, calibration=calibration, priors=priors)
        calibration = calibration.replaced(dict(zip(names, np.exp(theta), strict=True)))
        if progress is not None:
            progress("fitting", done + 1, rounds)
    spread = posterior(rows, jacobian, weights, priors)
    return CalibrationFit(
        calibration=calibration,
        spread=dict(zip(names, spread, strict=True)),
        logs=estimated_logs(rows, calibration),
        jacobian=jacobian,
        priors=priors,
    )


def _way(start: Calibration, end: Calibration, names: Sequence[str]) -> float:
    """Return the largest logarithmic change of a constant between two calibrations."""
    values = [(start.constants[name].value, end.constants[name].value) for name in names]
    return max(abs(math.log(after / before)) for before, after in values)


def estimated_logs(rows: Sequence[FitRow], calibration: Calibration) -> Floats:
    """Return the logarithms of the rows' estimated step times."""
    return np.log([row.estimate_s(calibration) for row in rows])


def solve_without(
    rows: Sequence[FitRow],
    full: CalibrationFit,
    *,
    seen: Flags,
    gone: frozenset[str] = frozenset(),
) -> Calibration:
    """Return the calibration fitted to the rows `seen`, using the full fit's Jacobian.

    Args:
        rows: All rows.
        full: Fit to all of them.
        seen: Which ones count.
        gone: Constants that are not fitted.
    """
    names = list(full.priors)
    stay = np.array([name not in gone for name in names])
    priors = {name: full.priors[name] for name in names if name not in gone}
    kept = [row for row, inside in zip(rows, seen, strict=True) if inside]
    weights, jacobian = row_weights(kept), full.jacobian[seen][:, stay]
    theta = solved(
        kept, full.logs[seen], jacobian, weights, calibration=full.calibration, priors=priors
    )
    spread = posterior(kept, jacobian, weights, priors)
    constants = dict(full.calibration.constants)
    for name, value, own in zip(priors, np.exp(theta), spread, strict=True):
        constants[name] = replace(constants[name], value=float(value), spread=float(own))
    return replace(full.calibration, constants=constants)


def row_weights(rows: Sequence[FitRow]) -> Floats:
    """Return the weight of each row: repeated configurations weigh less each."""
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
            if not known and _touches(name, row, names):
                jacobian[index, column] = (math.log(row.estimate_s(moved)) - logs[index]) / _STEP
        if progress is not None:
            progress("deriving", column + 1, len(names))
    return logs, jacobian


def _touches(name: str, row: FitRow, names: Sequence[str]) -> bool:
    """Return whether a constant can affect a row: its device, its family, or general.

    That of all devices does not where the row's die has its own among `names`.
    """
    scope, rest = name.split(".", 1)
    job = row.expressed.job
    device = job.cluster.node.device
    scopes = {
        "device": device.name,
        "die": device.die,
        "family": job.software,
        "architecture": device.architecture,
    }
    if scope in scopes:
        return rest.startswith(f"{scopes[scope]}.")
    if scope == "pooled" and f"die.{device.die}.{rest}" in names:
        return False
    if name == "general.replicate_s":
        return isinstance(job.strategy, StrategyOptions) and job.strategy.parallelism.single_process
    if name == BLOCKING_LAUNCH:
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
    measured = np.log([row.measured_s for row in rows])
    theta = np.log([calibration.constants[name].value for name in priors])
    target = measured - logs + jacobian @ theta
    jacobian, precision, pull = _with_sources(rows, jacobian, priors)
    solution = np.concatenate([theta, np.zeros(len(pull) - len(theta))])
    for _ in range(30):  # iteratively reweighted: Huber's loss
        residual = np.abs(target - jacobian @ solution) / _ROW_NOISE
        robust = np.where(residual > _HUBER, _HUBER / np.maximum(residual, 1e-12), 1.0)
        w = weights * robust / _ROW_NOISE**2
        normal = (jacobian * w[:, None]).T @ jacobian + precision
        right = (jacobian * w[:, None]).T @ target + pull
        solution = np.linalg.solve(normal, right)
    solution = solution[: len(theta)]
    # Long steps leave the region where the linearization holds.
    return np.asarray(theta + np.clip(solution - theta, -0.7, 0.7))


def _prior_normal(priors: Mapping[str, Prior]) -> tuple[Floats, Floats]:
    """Return matrix and right side of the priors' normal equations.

    A constant with a parent is pulled to a multiple of it, and pulls it in turn: partial pooling,
    which is all that is needed of a hierarchical model while everything is linear and normal.
    """
    names = list(priors)
    contrast = np.eye(len(names))
    for row, prior in enumerate(priors.values()):
        if prior.parent is not None:
            contrast[row, names.index(prior.parent)] = -1.0
    weight = np.array([prior.spread for prior in priors.values()]) ** -2.0
    at = np.log([prior.value for prior in priors.values()])
    return (contrast.T * weight) @ contrast, (contrast.T * weight) @ at


def _with_sources(
    rows: Sequence[FitRow], jacobian: Floats, priors: Mapping[str, Prior]
) -> tuple[Floats, Floats, Floats]:
    """Return Jacobian, matrix and right side with what single sources have of their own behind.

    It is a factor of the family's constant: an error of whole steps would take from that what it
    explains, and leave it to fit the differences between rows.
    """
    alone = [list(priors).index(name) for name in _alone(rows, priors)]
    precision, pull = _prior_normal(priors)
    constants, offsets = len(pull), len(alone)
    joint = np.eye(constants + offsets) / _SOURCE_NOISE**2
    joint[:constants, :constants] = precision
    wide = np.hstack([jacobian, jacobian[:, alone]])
    return wide, joint, np.concatenate([pull, np.zeros(offsets)])


def _alone(rows: Sequence[FitRow], priors: Mapping[str, Prior]) -> list[str]:
    """Return the constants of families that one source determines, and no narrow prior."""
    sources: dict[str, set[str]] = {}
    for row in rows:
        sources.setdefault(row.expressed.job.software, set()).add(row.expressed.row.source_id)
    names = (f"family.{family}.math" for family, of in sources.items() if len(of) == 1)
    return [each for each in names if each in priors and priors[each].spread >= _SOURCE_NOISE]


def posterior(
    rows: Sequence[FitRow], jacobian: Floats, weights: Floats, priors: Mapping[str, Prior]
) -> Floats:
    """Return the standard deviations of the constants' logarithms after the fit."""
    wide, precision, _ = _with_sources(rows, jacobian, priors)
    normal = (wide * (weights / _ROW_NOISE**2)[:, None]).T @ wide + precision
    return np.asarray(np.sqrt(np.diag(np.linalg.inv(normal))))[: jacobian.shape[1]]
