"""Elasticity of a measure with respect to each resource, and the limiting resource."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.design.answers.sweep import AxisColumn, NoAnswer, Sweep, answered_by_axis

#: A resource whose doubling changes the measure by less than 1 % does not limit it: 2^-0.015.
_NEGLIGIBLE = 0.015


@dataclass(frozen=True, slots=True, kw_only=True)
class Elasticity:
    """d ln(measure) / d ln(axis) at a point, from its neighbours along the axis.

    Attributes:
        below, above: Slope to the next smaller and the next larger value; None where there is none
            or nothing fits there.
        needed, capped: Nothing fits at the next smaller, or the next larger value: the point stands
            at the edge.
    """

    axis: str
    below: float | None
    above: float | None
    needed: bool
    capped: bool

    @property
    def slope(self) -> float | None:
        """The mean of the slopes that are known."""
        known = [slope for slope in (self.below, self.above) if slope is not None]
        return sum(known) / len(known) if known else None

    @property
    def is_for_more(self) -> bool:
        """Whether the measure becomes smaller with more of it, not just larger with less."""
        return self.above is not None and self.above < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitingResource:
    """The resource with the largest effect on a measure at a point.

    Attributes:
        measure: What was looked at.
        axis: Its name; None if no resource of the study limits the measure there.
        slope: Its elasticity (below zero: more of it makes the measure smaller).
        ranked: All elasticities, the most limiting first.
        without: Axis → why it has no elasticity.
    """

    measure: str
    base: int
    axis: str | None
    slope: float | None
    ranked: tuple[Elasticity, ...]
    without: dict[str, str]


def elasticities(
    sweep: Sweep, measure: str, base: int | None = None
) -> tuple[tuple[Elasticity, ...], dict[str, str]] | NoAnswer:
    """Return the elasticity of each axis at a point (the best one if None), and who has none."""
    values = sweep.measure(measure)
    if isinstance(values, NoAnswer):
        return values
    base = int(np.nanargmin(values)) if base is None else base
    if not values[base] > 0:
        return NoAnswer(f"{measure} is not known, or not above zero, at the point asked about")
    return answered_by_axis(sweep, lambda axis: _elasticity(sweep, axis, values, base))


def bottleneck(sweep: Sweep, measure: str, base: int | None = None) -> LimitingResource | NoAnswer:
    """Return which resource limits a measure at a point, the best one if None.

    At the best point nothing better is near, so what counts is what less of a resource would do.
    """
    values = elasticities(sweep, measure, base)
    if isinstance(values, NoAnswer):
        return values
    found, without = values
    ranked = sorted(found, key=lambda one: one.slope if one.slope is not None else 0.0)
    first = ranked[0] if ranked else None
    limits = first is not None and first.slope is not None and first.slope < -_NEGLIGIBLE
    chosen = sweep.best(measure) if base is None else base
    assert isinstance(chosen, int)
    return LimitingResource(
        measure=measure,
        base=chosen,
        axis=first.axis if first is not None and limits else None,
        slope=first.slope if first is not None and limits else None,
        ranked=tuple(ranked),
        without=without,
    )


def _elasticity(sweep: Sweep, axis: AxisColumn, values: Floats, base: int) -> Elasticity | NoAnswer:
    if not axis.numeric:
        return NoAnswer("its values are names")
    line = sweep.alone(axis, base)
    x = axis.numbers[axis.codes[line]]
    y = values[line]
    at = int(np.flatnonzero(line == base)[0])
    below = _slope(x, y, at, at - 1) if at > 0 else None
    above = _slope(x, y, at, at + 1) if at + 1 < len(line) else None
    needed = at > 0 and not bool(sweep.feasible[line[at - 1]])
    capped = at + 1 < len(line) and not bool(sweep.feasible[line[at + 1]])
    if below is None and above is None and not needed:
        return NoAnswer(
            "no point differs from this one in this axis alone"
            if len(line) < 2
            else "its neighboring values are zero, or the measure is not known there"
        )
    return Elasticity(axis=axis.name, below=below, above=above, needed=needed, capped=capped)


def _slope(x: Floats, y: Floats, at: int, to: int) -> float | None:
    usable = x[at] > 0 and x[to] > 0 and y[to] > 0  # false for NaN
    return float(np.log(y[to] / y[at]) / np.log(x[to] / x[at])) if usable else None
