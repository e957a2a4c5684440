"""The points of a study as columns, from which every answer is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.design.figures import NO_PRICE
from wattree.design.points import Value
from wattree.design.results import Results, ranked
from wattree.design.study import OBJECTIVE_TOTALS, Axis
from wattree.errors import did_you_mean

_Answer = TypeVar("_Answer")

#: Share by which simulated points may differ although none is better: computation that ends earlier
#: may meet another collective (Graham's scheduling anomaly). Of 5,000 drawn jobs one was 3.1 %
#: slower on faster hardware; the laws of the soak hold all drawn jobs to this bound.
ALIKE = 0.04
#: What is a list price, not simulated: any difference counts.
_EXACT = frozenset({"capital_usd"})


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A question that these points cannot answer.

    Attributes:
        reason: Why, and what would change it, in one sentence.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisColumn:
    """What one axis of a study is at each point.

    Attributes:
        name: As the study names it.
        label: For people.
        unit: In which numbers are shown (`GB/s`); None for names and plain numbers.
        factor: SI value of one `unit`.
        scales: Numbers are factors on what the base cluster has.
        levels: Distinct values, numbers rising and in SI, names as the study lists them.
        codes: Index into `levels` of each point, shape `(n,)`.
    """

    name: str
    label: str
    unit: str | None
    factor: float = 1.0
    scales: bool = False
    levels: tuple[Value, ...]
    codes: Integers

    @property
    def numeric(self) -> bool:
        """Whether every level is a number."""
        return all(is_number(level) for level in self.levels)

    @property
    def is_price(self) -> bool:
        """Whether it is what someone asks for something, which no cluster can choose."""
        return "USD/" in (self.unit or "")

    @property
    def numbers(self) -> Floats:
        """The levels as numbers [SI], shape `(levels,)`; only where `numeric`."""
        assert self.numeric, self.name
        return np.asarray(self.levels, dtype=np.float64)

    def value(self, point: int) -> Value:
        """Return the value at a point."""
        return self.levels[int(self.codes[point])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Every point that was evaluated, feasible or not.

    Attributes:
        axes: One for each axis of the study.
        measures: Name (`time_s`, `capital_usd`, …) → value at each point [SI], shape `(n,)`; NaN
            where the point is infeasible or the value unknown. All are better when smaller.
        feasible: Whether any strategy fits the point and the constraints, shape `(n,)`.
        objectives: Measures by which points that are equal in another are ordered, in this order.
        unpriced: Whether a point has no figures, or no cost, for want of a price; None: none has.
        reasons: Why each point is infeasible, in a few words; empty: not known.
    """

    axes: tuple[AxisColumn, ...]
    measures: Mapping[str, Floats]
    feasible: Flags
    objectives: tuple[str, ...] = ()
    unpriced: Flags | None = None
    reasons: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.feasible)

    def axis(self, name: str) -> AxisColumn | NoAnswer:
        """Return an axis by name."""
        for axis in self.axes:
            if axis.name == name:
                return axis
        return NoAnswer(_unknown("axis", name, [axis.name for axis in self.axes]))

    def measure(self, name: str) -> Floats | NoAnswer:
        """Return a measure at each point, NaN where infeasible; an answer needs one at least."""
        if not self.feasible.any():
            return NoAnswer("no point of the study is feasible")
        if name not in self.measures:
            return NoAnswer(_unknown("measure", name, self.measures))
        values = np.where(self.feasible, self.measures[name], np.nan)
        if not np.isfinite(values).any():
            return NoAnswer(f"{name} is known at no feasible point")
        return values

    def best(self, name: str) -> int | NoAnswer:
        """Return the feasible point where a measure is smallest; of equals by `objectives`."""
        values = self.measure(name)
        return values if isinstance(values, NoAnswer) else int(self._ranked(values)[0])

    def ties(self, name: str) -> Integers:
        """Return the points that simulation does not rank below the best one, by rising measure."""
        values, best = self.measure(name), self.best(name)
        if isinstance(values, NoAnswer) or isinstance(best, NoAnswer):
            return np.zeros(0, dtype=np.int64)
        order = self._ranked(values)
        most = values[best] * (1.0 if name in _EXACT else 1.0 + ALIKE)
        return np.asarray(order[(values[order] <= most) & (order != best)])

    def lacking(self, points: Flags | Integers) -> str:
        """Return why none of these points has a figure, in words."""
        unpriced = np.zeros(len(self), dtype=bool) if self.unpriced is None else self.unpriced
        found = {bool(each) for each in unpriced[points]}
        words = ("nothing fits" * (False in found), "no price is known" * (True in found))
        return " or ".join(filter(None, words))

    def reasons_at(self, *values: tuple[AxisColumn, Value]) -> str:
        """Return why points with these values are infeasible, in words; empty if not known."""
        there = ~self.feasible
        for axis, value in values:
            there &= axis.codes == axis.levels.index(value)
        found = {self.reasons[point] for point in np.flatnonzero(there).tolist() if self.reasons}
        return " or ".join(sorted(found - {""}))

    def alone(self, axis: AxisColumn, base: int) -> Integers:
        """Return the points that differ from `base` in no other axis, by rising level.

        `base` is among them. Of points that are equal in all axes the first stands for all.
        """
        same = np.ones(len(self), dtype=bool)
        for other in self.axes:
            if other.name != axis.name:
                same &= other.codes == other.codes[base]
        found = np.flatnonzero(same)
        _, first = np.unique(axis.codes[found], return_index=True)
        line = found[first]
        return np.asarray(np.where(axis.codes[line] == axis.codes[base], base, line))

    def lowest(self, axis: AxisColumn, values: Floats, among: Flags | None = None) -> Integers:
        """Return, for each level of an axis, the point where `values` is smallest, -1 for none.

        Args:
            axis: One of `axes`.
            values: Shape `(n,)`; NaN is never the smallest.
            among: Points to choose from; all if None.
        """
        usable = np.isfinite(values) if among is None else np.isfinite(values) & among
        found = np.full(len(axis.levels), -1, dtype=np.int64)
        order = self._ranked(values)
        # From the largest on: the last write, which stays, is the smallest and first.
        order = order[usable[order]][::-1]
        found[axis.codes[order]] = order
        return found

    def representatives(self, axis: AxisColumn, name: str, among: Flags) -> Integers:
        """Return the point that stands for each level of an axis in a measure, -1 for none.

        The one with the least of it. Where that takes clearly more capital than the best point
        among all, the one with the least capital of those that simulation does not rank below it.
        """
        values, prices = self.measure(name), self.measures.get("capital_usd")
        assert not isinstance(values, NoAnswer)
        found = self.lowest(axis, values, among)
        if name in _EXACT or prices is None or not (found >= 0).any():
            return found
        best = int(self._ranked(np.where(among, values, np.nan))[0])
        for level in np.flatnonzero(found >= 0).tolist():
            least = found[level]
            if prices[least] > prices[best] * (1.0 + ALIKE):
                alike = among & (axis.codes == level) & (values < values[least] * (1.0 + ALIKE))
                order = ranked(np.where(alike, prices, np.nan), [values])
                found[level] = order[0]
        return found

    def _ranked(self, values: Floats) -> Integers:
        return ranked(values, [self.measures.get(name) for name in self.objectives])


def _unknown(kind: str, name: str, known: Mapping[str, object] | list[str]) -> str:
    hint = did_you_mean(name, known)
    return f"the study has no {kind} '{name}'; {hint}it has {', '.join(known) or 'none'}"


def sweep_of(results: Results) -> Sweep:
    """Return the finished points of a study as columns, with the totals that any of them has."""
    totals = {name: results.total(name) for name in OBJECTIVE_TOTALS.values()}
    return Sweep(
        axes=tuple(_column(axis, results.values(axis.name)) for axis in results.study.axes),
        measures={name: values for name, values in totals.items() if np.isfinite(values).any()},
        feasible=results.feasible,
        objectives=tuple(OBJECTIVE_TOTALS[name] for name in results.study.objectives),
        unpriced=np.array(
            [
                "cost_usd" not in outcome.totals
                if outcome.feasible
                else NO_PRICE in str(outcome.reason)
                for outcome in results.outcomes
            ],
            dtype=bool,
        ),
        reasons=tuple(str(each.reason or "").partition(":")[0] for each in results.outcomes),
    )


def answered_by_axis(
    sweep: Sweep, answer: Callable[[AxisColumn], _Answer | NoAnswer]
) -> tuple[tuple[_Answer, ...], dict[str, str]]:
    """Return the answers for each axis, and the reason for each axis without one."""
    found, without = [], {}
    for axis in sweep.axes:
        one = answer(axis)
        if isinstance(one, NoAnswer):
            without[axis.name] = one.reason
        else:
            found.append(one)
    return tuple(found), without


def is_ranked(measure: str, share: float) -> bool:
    """Whether a difference of a measure, as a share of it, says which of two points is better."""
    return measure in _EXACT or not abs(share) < ALIKE


def is_number(value: Value) -> bool:
    """Whether a value of an axis has an order and distances; a truth value has not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _column(axis: Axis, values: tuple[Value, ...]) -> AxisColumn:
    if all(is_number(value) for value in values):
        levels, codes = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True)
        found: tuple[Value, ...] = tuple(_plain(level) for level in levels.tolist())
    else:
        listed = dict.fromkeys((*axis.values, *values))
        place = {value: place for place, value in enumerate(v for v in listed if v in set(values))}
        found, codes = tuple(place), np.array([place[value] for value in values], dtype=np.int64)
    return AxisColumn(
        name=axis.name,
        label=axis.label,
        unit=axis.unit,
        factor=axis.factor,
        scales=axis.scales,
        levels=found,
        codes=np.asarray(codes, dtype=np.int64).reshape(-1),
    )


def _plain(number: float) -> float | int:
    """Return counts as whole numbers, so that 1024 devices are not 1024.0."""
    return int(number) if number.is_integer() and abs(number) < 2**53 else number
