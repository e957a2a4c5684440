"""Corrections of fitted constants from measured times of a user's own runs.

Logarithms of constants are normal around the pooled values, apart by the spread that the pooled fit
gives them. A measured time sees one combination of them: each by the share of the time it sets.
Conditioned on that, constants move by share x spread^2 (those move most that matter most and are
least sure), and a predicted time is less sure only by what its shares do not have in common with
those that were observed. Everything is linear, so this is the exact posterior, in one solve.

What a run errs by alone in published rows may be common to a user's runs: one machine, one way to
measure. Several jobs show how much of it is, which then counts as what all of them err by alike.

Runs that lie far outside what these spreads say show that the machine or the software differs by
more: then the spreads are as much wider as makes the runs likeliest, so that constants follow.
One time that holds several classes does not tell which of them: what is beyond the spreads of these
moves them all alike, and other jobs may have it or not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattree.arrays import Floats
from wattree.trace import IntervalPart

#: Deviations beyond which a run, or a move, is doubted: one of a thousand is there by chance.
DOUBTFUL = 3.3
#: Halvings of the logarithm of how much wider spreads are, and the most. [1]
_HALVINGS, _WIDEST = 50, 1e6
#: What is observed of a run without a trace: all of its step, or of a run that timed its stages all
#: that is neither exchanged nor loaded. Also names what such a time errs by as a whole.
STEP, COMPUTING = WHOLES = ("step", "computing")
#: What all predictions for runs like the observed ones err by alike.
RESIDUAL = "residual"
#: Parts of the variance of noise that jobs may have in common; none is as likely as any other.
_COMMON_PARTS = tuple(part / 20.0 for part in range(1, 20))
#: Below that it is none.
_LEAST_COMMON = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One measured time of a run, and the constants that its prediction depends on.

    Attributes:
        what: The time that was measured: `step`, or a class of constants.
        job: File of the job, for people.
        device, software, kind, precision: Of the job: to which other jobs it applies.
        measured_s, predicted_s: With the run, and before it, by the straight line through what is
            predicted with it. [s]
        parts: Class of constants → share of the time that it sets, and its spread before the run.
            What all predictions for such runs err by alike has the share 1.
        noise: Spread of what only this time errs by.
        unexplained: Logarithm of the whole step over its prediction with the moved constants,
            where classes of it were observed: of time that no constant sets, such as waiting.
    """

    what: str
    job: str
    device: str
    software: str
    kind: str
    precision: str
    measured_s: float
    predicted_s: float
    parts: Mapping[str, IntervalPart]
    noise: float
    unexplained: float = 0.0

    @property
    def error(self) -> float:
        """Logarithm of measured over predicted."""
        return math.log(self.measured_s / self.predicted_s)

    def concerns(self, device: str, software: str, kind: str, precision: str) -> bool:
        """Return whether predictions of such a job are as sure as this observation makes them."""
        mine = (self.device, self.software, self.kind, self.precision)
        return mine == (device, software, kind, precision)


def moved(observations: Sequence[Observation]) -> dict[str, float]:
    """Return class of constants → shift of the logarithm of the time that it sets."""
    if not observations:
        return {}
    observations = as_errors_ask(observations)
    pull = np.linalg.solve(_covariance(observations), [each.error for each in observations])
    found: dict[str, float] = {}
    for each, weight in zip(observations, pull.tolist(), strict=True):
        for name, part in each.parts.items():
            found[name] = found.get(name, 0.0) + weight * part.share * part.spread**2
    return found


def run_errors(observations: Sequence[Observation]) -> dict[str, float]:
    """Return job → logarithm of its measured time over that with the moved constants.

    Of classes of a step, or of the whole step where that is farther off.
    """
    if not observations:
        return {}
    wide = as_errors_ask(observations)
    pull = np.linalg.solve(_covariance(wide), [each.error for each in wide])
    times_s: dict[str, float] = defaultdict(float)
    off_s: dict[str, float] = defaultdict(float)
    for each, weight in zip(wide, pull.tolist(), strict=True):
        times_s[each.job] += each.measured_s
        off_s[each.job] += each.measured_s * weight * each.noise**2
    whole = {each.job: each.unexplained for each in observations}
    return {job: max(off_s[job] / whole_s, whole[job], key=abs) for job, whole_s in times_s.items()}


def as_errors_ask(observations: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return observations with the spreads that explain their errors best."""
    return widened(shared(observations))


def shared(observations: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return observations whose noise is in part common, as the errors of several jobs show.

    The part is its mean over `_COMMON_PARTS` and none, by their likelihoods. It is none for times
    of one job, which say nothing of others, for classes of a step, and for kinds of models that
    have noise of their own.
    """
    jobs, kinds = {each.job for each in observations}, {each.kind for each in observations}
    if len(jobs) < len(observations) or len(jobs) < 2 or len(kinds) > 1:
        return tuple(observations)
    errors = np.array([each.error for each in observations])
    likelihoods = []
    for part in (0.0, *_COMMON_PARTS):
        covariance = _covariance([_sharing(each, part) for each in observations])
        _, size = np.linalg.slogdet(covariance)
        likelihoods.append(-0.5 * float(size + errors @ np.linalg.solve(covariance, errors)))
    weights = np.exp(np.array(likelihoods) - max(likelihoods))
    weights[1:] /= len(_COMMON_PARTS)
    part = float(weights[1:] @ _COMMON_PARTS / weights.sum())
    return tuple(_sharing(each, part if part > _LEAST_COMMON else 0.0) for each in observations)


def _sharing(each: Observation, part: float) -> Observation:
    """Return an observation with a part of its noise's variance in what all err by alike."""
    if not part:
        return each
    own = each.parts.get(RESIDUAL, IntervalPart(share=1.0, spread=0.0))
    alike = replace(own, spread=math.hypot(own.spread, math.sqrt(part) * each.noise))
    noise = math.sqrt(1.0 - part) * each.noise
    return replace(each, parts={**each.parts, RESIDUAL: alike}, noise=noise)


def widened(observations: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return observations whose errors are no farther out than is doubted, by wider spreads.

    All spreads of constants are scaled alike, `t` their squares, by what makes the errors over
    `DOUBTFUL` likeliest; 1 where that is less. With noise as the unit and by the axes of the
    covariance, that is the root of `sum(v * (y**2 / (1 + t * v)**2 - 1 / (1 + t * v)))`.
    """
    noise = np.array([each.noise for each in observations])
    errors = np.array([each.error for each in observations]) / noise / DOUBTFUL
    if errors @ errors <= 1.0:  # noise alone explains them
        return tuple(observations)
    common = _covariance(observations) / np.outer(noise, noise) - np.eye(len(noise))
    variances, axes = np.linalg.eigh(common)
    variances = np.maximum(variances, 0.0)
    squares = (axes.T @ errors) ** 2

    def slope(log_scale: float) -> float:
        whole = 1.0 + math.exp(log_scale) * variances
        return float((variances * (squares / whole - 1.0) / whole).sum())

    low, high = 0.0, 2.0 * math.log(_WIDEST)
    if slope(low) <= 0.0:
        return tuple(observations)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0.0 else (low, middle)
    scale = math.exp(low / 2)
    return tuple(
        _wider(each, scale, as_whole=each.what in WHOLES and _is_alone(each, observations))
        for each in observations
    )


def _is_alone(one: Observation, observations: Sequence[Observation]) -> bool:
    """Return whether no other observation tells the classes of one apart."""
    mine = one.parts.keys() - {RESIDUAL}
    return all(each is one or mine.isdisjoint(each.parts) for each in observations)


def _wider(each: Observation, scale: float, *, as_whole: bool) -> Observation:
    """Return an observation with wider spreads, of its classes or of them as a whole."""
    common = {RESIDUAL} if as_whole else set(each.parts)
    parts = {
        name: replace(part, spread=part.spread * (scale if name in common else 1.0))
        for name, part in each.parts.items()
    }
    if as_whole:
        own = math.hypot(*(p.deviation for name, p in parts.items() if name != RESIDUAL))
        parts[each.what] = IntervalPart(share=1.0, spread=math.sqrt(scale**2 - 1.0) * own)
    return replace(each, parts=parts)


def unattributed_spread(observations: Sequence[Observation]) -> float:
    """Return the spread of what one job errs by as a whole, which others may have or not."""
    wide = [each for each in as_errors_ask(observations) if each.what in WHOLES]
    return max(
        (each.parts[each.what].spread for each in wide if each.what in each.parts), default=0.0
    )


def error_weights(observations: Sequence[Observation], parts: Mapping[str, IntervalPart]) -> Floats:
    """Return the weight of each observed error in correcting a time that depends on `parts`.

    Args:
        observations: With the spreads that their errors ask for (`as_errors_ask`).
    """
    crossed = [_common(each.parts, parts) for each in observations]
    return np.asarray(np.linalg.solve(_covariance(observations), crossed))


def remaining_uncertainty(
    observations: Sequence[Observation], parts: Mapping[str, IntervalPart]
) -> tuple[dict[str, IntervalPart], float]:
    """Return the uncertainty that observations leave in a time, and their noise in it.

    Args:
        observations: Of runs like the predicted one; their spreads count, not those of `parts`.
        parts: What the predicted time rests on.

    Returns:
        Class → share that is left, negative where observations rested on it more; and a spread.
    """
    observations = as_errors_ask(observations)
    weights = error_weights(observations, parts).tolist()
    left = {name: part.share for name, part in parts.items()}
    spreads = {name: part.spread for name, part in parts.items()}
    for each, weight in zip(observations, weights, strict=True):
        for name, part in each.parts.items():
            left[name] = left.get(name, 0.0) - weight * part.share
            spreads[name] = part.spread
    noise = math.hypot(*(w * each.noise for each, w in zip(observations, weights, strict=True)))
    found = {name: IntervalPart(share=left[name], spread=spreads[name]) for name in left}
    return found, noise


def _common(
    one: Mapping[str, IntervalPart], other: Mapping[str, IntervalPart], most: float = math.inf
) -> float:
    """Return the covariance of two times through the constants that both depend on.

    Args:
        most: The spreads of `one` count, but no more than so many times those of `other`.
    """
    return math.fsum(
        part.share * other[name].share * min(part.spread, most * other[name].spread) ** 2
        for name, part in one.items()
        if name in other
    )


def _covariance(observations: Sequence[Observation]) -> Floats:
    # A class has other constants in other jobs (routers with and without graphs). Two have in
    # common what the surer one varies by; by the spread of either alone this is no covariance.
    found = np.array([[_common(a.parts, b.parts, 1.0) for b in observations] for a in observations])
    return np.asarray(found + np.diag([each.noise**2 for each in observations]))
