"""What each value of an axis buys, against a value taken as reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Flags, Floats
from wattree.design.answers.break_even import BreakEven, break_even_with
from wattree.design.answers.sweep import AxisColumn, NoAnswer, Sweep
from wattree.design.points import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelWorth:
    """One value of an axis.

    Attributes:
        point: The point that stands for it (`Sweep.representatives`); None where nothing fits.
        change: Measure → change at that point against the reference's best point, as a share of
            the latter (-0.12: 12 % less); NaN where unknown.
        feasible, points: Points with this value that fit, and all.
        lacking: Why no point stands for it, in words; empty where one does.
    """

    value: Value
    point: int | None
    change: Mapping[str, float]
    feasible: int
    points: int
    lacking: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """All values of an axis.

    Attributes:
        measure: By which the best point of each value is chosen.
        reference: The value that others are compared with.
        base: All other axes are as at this point; None where each value has what suits it best.
        levels: By value, the reference among them.
        break_even: From which value on it beats the reference; an axis of names has none.
    """

    axis: str
    measure: str
    reference: Value
    base: int | None
    levels: tuple[LevelWorth, ...]
    break_even: BreakEven | NoAnswer


def worth(
    sweep: Sweep, axis_name: str, measure: str, *, base: int | None = None
) -> Worth | NoAnswer:
    """Return what each value of an axis buys.

    The reference is the lowest value at which anything fits, for an axis of names the first.

    Args:
        base: Keep all other axes as at this point. None lets each value have what suits it best.
    """
    values, axis = sweep.measure(measure), sweep.axis(axis_name)
    if isinstance(values, NoAnswer):
        return values
    if isinstance(axis, NoAnswer):
        return axis
    among = _like(sweep, axis, base)
    points = sweep.representatives(axis, measure, among)
    fitting = np.flatnonzero(points >= 0)
    if not len(fitting):
        return NoAnswer(f"{axis.label}: nothing fits at any value")
    present = np.flatnonzero(np.bincount(axis.codes[among], minlength=len(axis.levels)))
    if len(present) < 2:
        return NoAnswer(f"{axis.label}: no point differs from this one in this axis alone")
    reference = int(fitting[0])
    levels = tuple(
        _level(
            sweep, axis, int(code), points=(int(points[code]), int(points[reference])), among=among
        )
        for code in present
    )
    return Worth(
        axis=axis_name,
        measure=measure,
        reference=axis.levels[reference],
        base=base,
        levels=levels,
        break_even=_break_even(sweep, axis, measure, axis.levels[reference], base),
    )


def _break_even(
    sweep: Sweep, axis: AxisColumn, measure: str, reference: Value, base: int | None
) -> BreakEven | NoAnswer:
    if not axis.numeric:
        return NoAnswer(f"{axis.label} has names for values, which have no order")
    return break_even_with(sweep, measure, along=axis.name, reference=reference, base=base)


def _like(sweep: Sweep, axis: AxisColumn, base: int | None) -> Flags:
    if base is None:
        return np.ones(len(sweep), dtype=bool)
    among = np.zeros(len(sweep), dtype=bool)
    among[sweep.alone(axis, base)] = True
    return among


def _level(
    sweep: Sweep, axis: AxisColumn, code: int, *, points: tuple[int, int], among: Flags
) -> LevelWorth:
    point, reference = points
    mine = (axis.codes == code) & among
    return LevelWorth(
        value=axis.levels[code],
        point=point if point >= 0 else None,
        change={
            name: _change(values, point, reference) if point >= 0 else float("nan")
            for name, values in sweep.measures.items()
        },
        feasible=int((mine & sweep.feasible).sum()),
        points=int(mine.sum()),
        lacking=sweep.lacking(mine) if point < 0 else "",
    )


def _change(values: Floats, point: int, reference: int) -> float:
    before = float(values[reference])
    return float(values[point]) / before - 1 if before > 0 else float("nan")
