"""Where one alternative overtakes another along an axis."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from wattree.arrays import Flags, Floats
from wattree.design.answers.sweep import AxisColumn, NoAnswer, Sweep, is_ranked
from wattree.design.points import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """One change of the winner.

    Attributes:
        at: Where the two are equal, interpolated between the nearest values of the study
            (linearly in logarithms where all is positive); None where one of the two is infeasible
            on one side, so that only the bounds are known.
        bounds: The values of the axis between which it lies.
        first_wins_after: Whether the first alternative is the better one beyond it.
    """

    at: float | None
    bounds: tuple[float, float]
    first_wins_after: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Two alternatives along an axis.

    Attributes:
        measure: Measure to compare; smaller is better.
        alternative: Axis whose values are compared.
        along: Axis along which they are.
        values: Values of it where at least one of the two is feasible, rising [SI].
        gains: At each, how much smaller the first's measure is, as a share of the second's;
            NaN where one is infeasible.
        crossings: Changes of the winner, rising, between values at which the difference ranks the
            two. None: one is better throughout.
        first_wins_at_start: Whether the first alternative is the better one at the lowest value
            that ranks them; None where none does.
    """

    measure: str
    alternative: str
    first: Value
    second: Value
    along: str
    values: Floats
    gains: Floats
    crossings: tuple[Crossing, ...]
    first_wins_at_start: bool | None


def break_even(
    sweep: Sweep,
    measure: str,
    *,
    alternative: str,
    first: Value,
    second: Value,
    along: str,
    base: int | None = None,
) -> BreakEven | NoAnswer:
    """Compare two values of an axis along another.

    Args:
        alternative: Axis with the two values.
        base: Keep all other axes as at this point. None lets each alternative have what suits it
            best, at each value of `along`.
    """
    values, axis, other = sweep.measure(measure), sweep.axis(along), sweep.axis(alternative)
    for part in (values, axis, other):
        if isinstance(part, NoAnswer):
            return part
    assert isinstance(values, np.ndarray) and isinstance(axis, AxisColumn)  # noqa: PT018
    assert isinstance(other, AxisColumn)
    problem = _unfit(axis, other, first, second)
    if problem:
        return NoAnswer(problem)
    among = _like(sweep, base, but=(along, alternative))
    lines = (
        _line(sweep, axis, values, among & _has(other, first)),
        _line(sweep, axis, values, among & _has(other, second)),
    )
    return _compared(axis, other, measure, (first, second), lines)


def break_even_with(
    sweep: Sweep, measure: str, *, along: str, reference: Value, base: int | None = None
) -> BreakEven | NoAnswer:
    """Compare every value of a numeric axis with one value of it, such as none of a resource.

    The first alternative is "the value of the axis", the second is `reference`.
    """
    values, axis = sweep.measure(measure), sweep.axis(along)
    if isinstance(values, NoAnswer):
        return values
    if isinstance(axis, NoAnswer):
        return axis
    if not axis.numeric or reference not in axis.levels:
        return NoAnswer(f"{along} has no number {reference!r}")
    among = _like(sweep, base, but=(along,))
    line = _line(sweep, axis, values, among)
    at = axis.levels.index(reference)
    constant = np.full(len(line), line[at])
    line, constant = np.delete(line, at), np.delete(constant, at)
    if len(axis.levels) < 2:
        return NoAnswer(f"{along} has one value")
    others = tuple(level for level in axis.levels if level != reference)
    rest = replace(axis, levels=others, codes=np.zeros(0, dtype=np.int64))
    return _compared(rest, axis, measure, (axis.name, reference), (line, constant))


def crossings(
    x: Floats, first: Floats, second: Floats, ranks: Flags | None = None
) -> tuple[Crossing, ...]:
    """Return where the smaller of two curves changes.

    Between two neighbouring values curves are taken as straight in logarithms where x and both
    curves are positive, else as straight. Where the two touch and part again with the same winner
    nothing changes. Where they are equal over a stretch, the change is at its beginning.

    Args:
        x: Rising, shape `(n,)`.
        first: Shape `(n,)`; NaN where infeasible, which any feasible value beats.
        second: Likewise.
        ranks: Where a difference says which is better; everywhere if None. Of changes between two
            such places that disagree the first counts, and none between two that agree.
    """
    signs = _signs(first, second)
    found = _changes(x, first, second, signs)
    if ranks is None:
        return tuple(found)
    clear = np.flatnonzero(signs * ranks)
    kept = []
    for i, j in itertools.pairwise(clear.tolist()):
        if signs[i] != signs[j]:
            kept.append(
                next(one for one in found if x[i] <= one.bounds[0] <= one.bounds[1] <= x[j])
            )
    return tuple(kept)


def _changes(x: Floats, first: Floats, second: Floats, signs: Floats) -> list[Crossing]:
    """Return every change of the smaller one, however small the difference."""
    there = np.flatnonzero(signs)
    found = []
    for i, j in zip(there[:-1].tolist(), there[1:].tolist(), strict=True):
        if signs[i] != signs[j]:
            equal = [k for k in range(i + 1, j) if np.isfinite(first[k])]
            at = float(x[equal[0]]) if equal else _between(x, first, second, i, j)
            bounds = (float(x[i]), float(x[j]))
            found.append(Crossing(at=at, bounds=bounds, first_wins_after=bool(signs[j] < 0)))
    return found


def _signs(first: Floats, second: Floats) -> Floats:
    """Return -1 where the first is better, 1 where the second is, 0 where neither."""
    a, b = np.nan_to_num(first, nan=np.inf), np.nan_to_num(second, nan=np.inf)
    return np.asarray((a > b).astype(float) - (a < b).astype(float))


def _between(x: Floats, first: Floats, second: Floats, i: int, j: int) -> float | None:
    ends = np.array([first[i], first[j], second[i], second[j]])
    if not np.isfinite(ends).all():
        return None
    gap = np.log(ends[:2] / ends[2:]) if ends.min() > 0 else ends[:2] - ends[2:]
    part = float(gap[0] / (gap[0] - gap[1]))
    if x[i] > 0:
        return float(np.clip(x[i] * (x[j] / x[i]) ** part, x[i], x[j]))
    return float(np.clip(x[i] + part * (x[j] - x[i]), x[i], x[j]))


def _compared(
    axis: AxisColumn,
    other: AxisColumn,
    measure: str,
    names: tuple[Value, Value],
    lines: tuple[Floats, Floats],
) -> BreakEven | NoAnswer:
    a, b = lines
    there = np.isfinite(a) | np.isfinite(b)
    if not np.isfinite(a).any() or not np.isfinite(b).any():
        which = names[1] if np.isfinite(a).any() else names[0]
        return NoAnswer(f"{other.label} {which}: nothing fits, at any value of {axis.label}")
    x, a, b = axis.numbers[there], a[there], b[there]
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = 1 - a / b
    ranks = np.array([is_ranked(measure, float(gain)) for gain in gains])
    winners = _signs(a, b)
    decided = winners[(winners != 0) & ranks]
    return BreakEven(
        measure=measure,
        alternative=other.name,
        first=names[0],
        second=names[1],
        along=axis.name,
        values=x,
        gains=gains,
        crossings=crossings(x, a, b, ranks),
        first_wins_at_start=bool(decided[0] < 0) if len(decided) else None,
    )


def _unfit(axis: AxisColumn, other: AxisColumn, first: Value, second: Value) -> str:
    if axis.name == other.name:
        return "the two axes are the same"
    if not axis.numeric:
        return f"{axis.label} has names for values, which have no order"
    if len(axis.levels) < 2:
        return f"{axis.label} has one value"
    missing = [value for value in (first, second) if value not in other.levels]
    if missing:
        return f"{other.label} is never {missing[0]!r}"
    return "the two alternatives are the same" if first == second else ""


def _like(sweep: Sweep, base: int | None, *, but: tuple[str, ...]) -> Flags:
    same = np.ones(len(sweep), dtype=bool)
    if base is not None:
        for axis in sweep.axes:
            if axis.name not in but:
                same &= axis.codes == axis.codes[base]
    return same


def _has(axis: AxisColumn, value: Value) -> Flags:
    return np.asarray(axis.codes == axis.levels.index(value))


def _line(sweep: Sweep, axis: AxisColumn, values: Floats, among: Flags) -> Floats:
    points = sweep.lowest(axis, values, among)
    return np.asarray(np.where(points >= 0, values[points], np.nan))
