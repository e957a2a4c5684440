"""How much each axis matters: one at a time around a point, and over the whole study."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.design.answers.sweep import AxisColumn, NoAnswer, Sweep, answered_by_axis
from wattree.design.points import Value

#: Values of an axis are put into at most so many classes of equal size for its main effect.
_MOST_CLASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What one axis alone does to a measure around a base point.

    Attributes:
        base: Its value at the base point.
        lowest, highest: The smallest and the largest value of the measure, relative to the base.
        at_lowest, at_highest: Values of the axis there.
        infeasible: Values of the axis at which nothing fits.
    """

    axis: str
    base: Value
    lowest: float
    highest: float
    at_lowest: Value
    at_highest: Value
    infeasible: tuple[Value, ...]

    @property
    def span(self) -> float:
        """How many times larger the largest is than the smallest."""
        return self.highest / self.lowest


@dataclass(frozen=True, slots=True, kw_only=True)
class Tornado:
    """Bars by falling span, and the axes that have none.

    Attributes:
        measure: What was looked at.
        bars: Those of axes with another value at which the measure is known.
        without: Axis → why it has none.
    """

    measure: str
    base: int
    bars: tuple[Bar, ...]
    without: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The main effect of one axis.

    Attributes:
        share: Part of the variance of the measure's logarithm that the axis alone accounts for,
            all others left as they fall: the correlation ratio, an estimate of the first-order
            sensitivity index that assumes no model. Corrected for chance (Kelley's epsilon
            squared), so that an axis without effect has 0 on average; never below 0.
        classes: Classes that its values were put into.
        feasible: Smallest and largest share of feasible points in a class.
    """

    axis: str
    share: float
    classes: int
    feasible: tuple[float, float]


def tornado(sweep: Sweep, measure: str, base: int | None = None) -> Tornado | NoAnswer:
    """Change one axis at a time from a point, the best one if none is given."""
    values = sweep.measure(measure)
    if isinstance(values, NoAnswer):
        return values
    base = int(np.nanargmin(values)) if base is None else base
    if not values[base] > 0:
        return NoAnswer(f"{measure} is not above zero at the point that is to be compared with")
    bars, without = answered_by_axis(sweep, lambda axis: _bar(sweep, axis, values, base))
    ordered = tuple(sorted(bars, key=lambda bar: -bar.span))
    return Tornado(measure=measure, base=base, bars=ordered, without=without)


def _bar(sweep: Sweep, axis: AxisColumn, values: Floats, base: int) -> Bar | NoAnswer:
    line = sweep.alone(axis, base)
    if len(line) < 2:
        return NoAnswer("no point differs from this one in this axis alone")
    known = line[np.isfinite(values[line])]
    if len(known) < 2:
        return NoAnswer(f"{sweep.lacking(line[line != base])} at its other values")
    ratio = values[known] / values[base]
    low, high = int(np.argmin(ratio)), int(np.argmax(ratio))
    return Bar(
        axis=axis.name,
        base=axis.value(base),
        lowest=float(ratio[low]),
        highest=float(ratio[high]),
        at_lowest=axis.value(int(known[low])),
        at_highest=axis.value(int(known[high])),
        infeasible=tuple(axis.value(int(point)) for point in line[~sweep.feasible[line]]),
    )


def main_effects(sweep: Sweep, measure: str) -> tuple[Effect, ...] | NoAnswer:
    """Return the main effect of every axis with two classes or more, largest first.

    It needs no grid: any sample will do. Axes with many values (random ones) are put into classes
    of about equal size. Shares need not add up to one: what is left is interaction of axes, or,
    where axes were not sampled independently, counted twice.
    """
    values = sweep.measure(measure)
    if isinstance(values, NoAnswer):
        return values
    known = np.flatnonzero(np.isfinite(values) & (np.nan_to_num(values) > 0))
    if len(known) < 3:
        return NoAnswer(f"{len(known)} feasible points are too few to compare variances")
    logs = np.log(values[known])
    if np.ptp(logs) <= 1e-12 * max(1.0, float(np.abs(logs).max())):
        return NoAnswer(f"{measure} is the same at every feasible point")
    effects = [_effect(sweep, axis, logs, known) for axis in sweep.axes if len(axis.levels) > 1]
    found = sorted((effect for effect in effects if effect is not None), key=lambda e: -e.share)
    return tuple(found) if found else NoAnswer("every axis has one value, or one for each point")


def _effect(sweep: Sweep, axis: AxisColumn, logs: Floats, known: np.ndarray) -> Effect | None:
    classes = _classes(axis, len(known))
    mine = classes[known]
    used, members = np.unique(mine, return_counts=True)
    if len(used) < 2 or len(used) >= len(known):
        return None
    sums = np.bincount(mine, weights=logs)[used]
    total = float(((logs - logs.mean()) ** 2).sum())
    between = float((members * (sums / members - logs.mean()) ** 2).sum())
    within = max(total - between, 0.0)
    chance = (len(used) - 1) * within / (len(known) - len(used))
    rates = np.bincount(classes, weights=sweep.feasible) / np.maximum(np.bincount(classes), 1)
    present = rates[np.unique(classes)]
    return Effect(
        axis=axis.name,
        share=max(0.0, (between - chance) / total),
        classes=len(used),
        feasible=(float(present.min()), float(present.max())),
    )


def _classes(axis: AxisColumn, points: int) -> np.ndarray:
    """Return the class of each point: its level, or for many numbers a range of levels."""
    most = min(_MOST_CLASSES, max(2, points // 5))
    if not axis.numeric or len(axis.levels) <= most:
        return axis.codes
    ranks = np.argsort(np.argsort(axis.codes, kind="stable"), kind="stable")
    first = np.full(len(axis.levels), len(ranks))
    np.minimum.at(first, axis.codes, ranks)  # equal values stay together
    return np.asarray(first[axis.codes] * most // len(ranks), dtype=np.int64)
