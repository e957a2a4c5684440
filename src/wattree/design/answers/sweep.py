"""The points of a study as columns, which every answer is computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.errors import nearest

__all__ = ["AxisColumn", "Flags", "Floats", "Integers", "NoAnswer", "Sweep", "Value"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Value = float | int | str


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
        levels: Distinct values, numbers rising and in SI, names as the study lists them.
        codes: Index into `levels` of each point, shape `(n,)`.
    """

    name: str
    label: str
    unit: str | None
    levels: tuple[Value, ...]
    codes: Integers

    @property
    def numeric(self) -> bool:
        """Whether every level is a number."""
        return all(
            isinstance(level, (int, float)) and not isinstance(level, bool) for level in self.levels
        )

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
    """

    axes: tuple[AxisColumn, ...]
    measures: Mapping[str, Floats]
    feasible: Flags

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
        """Return the feasible point where a measure is smallest; of equals the first."""
        values = self.measure(name)
        return values if isinstance(values, NoAnswer) else int(np.nanargmin(values))

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
        candidates = np.flatnonzero(usable)
        # Stable, from the largest on: the last write, which stays, is the smallest and first.
        order = candidates[np.argsort(values[candidates], kind="stable")][::-1]
        found[axis.codes[order]] = order
        return found


def _unknown(kind: str, name: str, known: Mapping[str, object] | list[str]) -> str:
    guess = nearest(name, known)
    hint = f"did you mean '{guess}'? " if guess else ""
    return f"the study has no {kind} '{name}'; {hint}it has {', '.join(known) or 'none'}"
