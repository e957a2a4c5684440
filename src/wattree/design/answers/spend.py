"""The best use of additional budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.design.answers.budget import best_within
from wattree.design.answers.sweep import AxisColumn, NoAnswer, Sweep
from wattree.design.points import Value

#: The measure that a price of the cluster is known by.
CAPITAL = "capital_usd"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingStep:
    """One more step of one axis.

    Attributes:
        value: Its value after the step.
        point: The point reached; all other axes stay.
        gain: How much smaller the measure is then, as a share of what it was.
        gain_per_sum: What the sum gains on this axis: `gain` if it pays for the step, as nothing is
            known of going on beyond it; else the part of it that the sum would buy at the step's
            rate, gains compounding, to compare axes by: such a step cannot be had in part.
        affordable: Whether the sum pays for the whole step.
    """

    axis: str
    value: Value
    point: int
    extra_usd: float
    gain: float
    gain_per_sum: float
    affordable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What a sum buys from a point on.

    Attributes:
        steps: The best step of each axis, those that the sum pays for first, then by gain for the
            sum; only steps that both cost and gain something.
        free: Steps that gain and cost nothing, or less.
        anywhere: The best point that the sum reaches, whatever changes; the base if none is better.
        gain: Its gain, as a share of the measure at the base.
        without: Axis → why spending on it gains nothing here.
    """

    measure: str
    base: int
    sum_usd: float
    steps: tuple[SpendingStep, ...]
    free: tuple[SpendingStep, ...]
    anywhere: int
    gain: float
    without: dict[str, str]


def spend(
    sweep: Sweep, measure: str, *, base: int | None = None, sum_usd: float = 1e6
) -> Spending | NoAnswer:
    """Return what a sum buys from a point on, by one axis at a time and by any change.

    Args:
        sweep: The points; `capital_usd` must be among the measures.
        base: Where one stands. None is the cheapest feasible point, and of those the best.
        sum_usd: The sum [USD].
    """
    known = _known(sweep, measure)
    if isinstance(known, NoAnswer):
        return known
    values, prices = known
    both = np.isfinite(values) & np.isfinite(prices)
    if not both.any():
        return NoAnswer(f"no feasible point has both {CAPITAL} and {measure}")
    base = _cheapest(prices, values, both) if base is None else base
    if not (both[base] and values[base] > 0):
        return NoAnswer(f"{CAPITAL} or {measure} is not known at the point where one stands")
    steps, free, without = _steps(sweep, values, prices, base, sum_usd)
    affordable = best_within(sweep, measure, CAPITAL, float(prices[base]) + sum_usd)
    assert isinstance(affordable, int)  # the base itself is within it
    affordable = affordable if values[affordable] < values[base] else base
    return Spending(
        measure=measure,
        base=base,
        sum_usd=sum_usd,
        steps=tuple(sorted(steps, key=_rank)),
        free=tuple(sorted(free, key=lambda step: -step.gain)),
        anywhere=affordable,
        gain=float(1 - values[affordable] / values[base]),
        without=without,
    )


def _known(sweep: Sweep, measure: str) -> tuple[Floats, Floats] | NoAnswer:
    if CAPITAL not in sweep.measures or not np.isfinite(sweep.measures[CAPITAL]).any():
        return NoAnswer(
            "no purchase price of the clusters is known: give capital.device or capital.node one, "
            "or link it to the axes"
        )
    if measure == CAPITAL:
        return NoAnswer(f"{CAPITAL} cannot be both what is spent and what is to be small")
    values, prices = sweep.measure(measure), sweep.measure(CAPITAL)
    if isinstance(values, NoAnswer):
        return values
    return prices if isinstance(prices, NoAnswer) else (values, prices)


def _rank(step: SpendingStep) -> tuple[bool, float, float]:
    return (not step.affordable, -step.gain_per_sum, step.extra_usd)


def _cheapest(prices: Floats, values: Floats, both: np.ndarray) -> int:
    points = np.flatnonzero(both)
    return int(points[np.lexsort((values[points], prices[points]))[0]])


def _steps(
    sweep: Sweep, values: Floats, prices: Floats, base: int, sum_usd: float
) -> tuple[list[SpendingStep], list[SpendingStep], dict[str, str]]:
    paid, free, without = [], [], {}
    for axis in sweep.axes:
        steps = _along(sweep, axis, values, prices, base=base, sum_usd=sum_usd)
        if isinstance(steps, NoAnswer):
            without[axis.name] = steps.reason
            continue
        given = [step for step in steps if step.extra_usd <= 0]
        bought = [step for step in steps if step.extra_usd > 0]
        if given:
            free.append(max(given, key=lambda step: step.gain))
        if bought:
            paid.append(min(bought, key=_rank))
    return paid, free, without


def _along(
    sweep: Sweep, axis: AxisColumn, values: Floats, prices: Floats, *, base: int, sum_usd: float
) -> list[SpendingStep] | NoAnswer:
    line = sweep.alone(axis, base)
    line = line[line != base]
    if not len(line):
        return NoAnswer("no point differs from this one in this axis alone")
    line = line[np.isfinite(values[line]) & np.isfinite(prices[line])]
    if not len(line):
        return NoAnswer("nothing fits at its other values")
    better = line[values[line] < values[base]]
    if not len(better):
        return NoAnswer("no other value of it is better")
    return [_step(axis, int(point), values, prices, base=base, sum_usd=sum_usd) for point in better]


def _step(
    axis: AxisColumn, point: int, values: Floats, prices: Floats, *, base: int, sum_usd: float
) -> SpendingStep:
    extra = float(prices[point] - prices[base])
    ratio = float(values[point] / values[base])
    part = min(1.0, sum_usd / extra) if extra > 0 else 1.0
    return SpendingStep(
        axis=axis.name,
        value=axis.value(point),
        point=point,
        extra_usd=extra,
        gain=1 - ratio,
        gain_per_sum=1 - ratio**part,
        affordable=extra <= sum_usd,
    )
