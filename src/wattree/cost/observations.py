"""Corrections of fitted constants from measured times of a user's own runs.

Logarithms of constants are normal around the pooled values, apart by the spread that the pooled fit
gives them. A measured time sees one combination of them: each by the share of the time it sets.
Conditioned on that, constants move by share x spread^2 (those move most that matter most and are
least sure), and a predicted time is less sure only by what its shares do not have in common with
those that were observed. Everything is linear, so this is the exact posterior, in one solve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.trace import IntervalPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One measured time of a run, and the constants that its prediction depends on.

    Attributes:
        what: The time that was measured: `step`, or a class of constants.
        job: File of the job, for people.
        device, software, kind, precision: Of the job: to which other jobs it applies.
        measured_s, predicted_s: With the run, and before it. [s]
        parts: Class of constants → share of the time that it sets, and its spread before the run.
            What all predictions for such runs err by alike has the share 1.
        noise: Spread of what only this time errs by.
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
    pull = np.linalg.solve(_covariance(observations), [each.error for each in observations])
    found: dict[str, float] = {}
    for each, weight in zip(observations, pull.tolist(), strict=True):
        for name, part in each.parts.items():
            found[name] = found.get(name, 0.0) + weight * part.share * part.spread**2
    return found


def error_weights(observations: Sequence[Observation], parts: Mapping[str, IntervalPart]) -> Floats:
    """Return the weight of each observed error in correcting a time that depends on `parts`."""
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


def _common(one: Mapping[str, IntervalPart], other: Mapping[str, IntervalPart]) -> float:
    """Return the covariance of two times through the constants that both depend on."""
    return math.fsum(
        part.share * other[name].share * part.spread**2
        for name, part in one.items()
        if name in other
    )


def _covariance(observations: Sequence[Observation]) -> Floats:
    found = np.array([[_common(a.parts, b.parts) for b in observations] for a in observations])
    return np.asarray(found + np.diag([each.noise**2 for each in observations]))
