"""Fit constants of the cost models to measurements, with the error on held-out points.

Each family of points is fitted twice, to either half of it, and scored on the other half; the
constants that are kept are those of all points. What is fitted is the project's own formula:
`cost.convolution.implicit_matmul_time_s` for products, one bandwidth for each kind of stream,
latency plus bytes for exchanges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wattree.arrays import Floats
from wattree.measure.profile.journal import Times

#: Parameters by name, in natural units, all positive.
Parameters = Mapping[str, float]
#: Parameters → time of each point. [s]
Model = Callable[[Parameters, Sequence[Times]], Floats]

#: Residuals of logarithms beyond this count linearly: a disturbed point does not bend a curve.
_OUTLIER = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyFit:
    """Parameters of one family.

    Attributes:
        family: What was fitted, for people.
        values: Parameter → value.
        spreads: Parameter → standard deviation of its logarithm.
        error: Mean absolute relative error on all points.
        held_out: The same on points that the fit never saw; None with too few points to tell.
        rows: Point → measured and predicted time, and the spread of its rounds. [s, s, 1]
    """

    family: str
    values: Parameters
    spreads: Parameters = field(default_factory=dict)
    error: float
    held_out: float | None
    points: int
    rows: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)

    @property
    def spread(self) -> float:
        """Relative spread of a point's rounds: the median over points."""
        return float(np.median([spread for *_, spread in self.rows.values()]))


def fit_family(family: str, times: Sequence[Times], model: Model, start: Parameters) -> FamilyFit:
    """Return the parameters fitted to a family's points.

    Args:
        times: Measured points, one at least.
        model: Parameters → times of points.
        start: Parameters to begin with; their names are those of the result.
    """
    values, spreads = _fitted(times, model, start)
    predicted = model(values, times)
    measured = _seconds(times)
    misses = [
        np.abs(model(_fitted(seen, model, start)[0], unseen) / _seconds(unseen) - 1.0)
        for seen, unseen in _halves(times)
        if len(seen) >= len(start)
    ]
    return FamilyFit(
        family=family,
        values=values,
        spreads=spreads,
        error=float(np.mean(np.abs(predicted / measured - 1.0))),
        held_out=float(np.mean(np.concatenate(misses))) if len(misses) == 2 else None,
        points=len(times),
        rows={
            each.point.key: (float(m), float(p), each.spread)
            for each, m, p in zip(times, measured, predicted, strict=True)
        },
    )


def _halves(times: Sequence[Times]) -> Iterator[tuple[list[Times], list[Times]]]:
    """Yield each half of the points and the other half, with sizes and kinds spread over both."""
    ordered = sorted(times, key=lambda each: (each.point.name, each.seconds))
    for first in (0, 1):
        yield ordered[first::2], ordered[1 - first :: 2]


def _seconds(times: Sequence[Times]) -> Floats:
    return np.array([each.seconds for each in times])


def _fitted(
    times: Sequence[Times], model: Model, start: Parameters
) -> tuple[dict[str, float], dict[str, float]]:
    """Return parameters, and deviations of their logarithms, by robust least squares of ratios."""
    from scipy.optimize import least_squares

    names = list(start)
    measured = _seconds(times)

    def named(logarithms: Floats) -> dict[str, float]:
        return dict(zip(names, np.exp(logarithms).tolist(), strict=True))

    def misses(logarithms: Floats) -> Floats:
        return np.log(np.maximum(model(named(logarithms), times), 1e-12) / measured)

    origin = np.log(np.array([start[name] for name in names]))
    found = least_squares(
        misses,
        origin,
        loss="soft_l1",
        f_scale=_OUTLIER,
        bounds=(origin - 12.0, origin + 12.0),
        x_scale=1.0,
    )
    return named(found.x), _spreads(names, found.jac, misses(found.x))


def _spreads(names: Sequence[str], jacobian: Floats, misses: Floats) -> dict[str, float]:
    freedom = max(len(misses) - len(names), 1)
    variance = float(misses @ misses) / freedom
    covariance = np.linalg.pinv(jacobian.T @ jacobian) * variance
    deviations = np.sqrt(np.clip(np.diag(covariance), 0.0, 9.0))
    return dict(zip(names, deviations.tolist(), strict=True))
