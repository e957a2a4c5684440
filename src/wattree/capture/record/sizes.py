"""Sizes of several runs → one size in batch and sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wattree.graph import Extent


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePoint:
    """Batch and sequence of one run; sequence is None if inputs have no such dim."""

    batch: int
    sequence: int | None = None


#: Share by which a size may miss a power at another batch or length: `S + 1` of long texts does.
_NEGLIGIBLE = 0.01


@dataclass(slots=True, kw_only=True)
class Sizes:
    """Makes extents from sizes at several points; they are exact at the first.

    Attributes:
        points: The first has the reference sizes, the second another batch, the third (if there
            is one) another sequence.
        approximate: Sizes seen that are far from any power of batch and sequence.
    """

    points: Sequence[SizePoint]
    approximate: set[tuple[float, ...]] = field(default_factory=set)

    def extent(self, *values: float) -> Extent:
        """Return `c · B^b · S^s` through the value of the first point, powers as found."""
        first = self.points[0]
        by_batch = self._power(values, 1, self.points[1].batch / first.batch)
        by_seq = 0
        if len(values) > 2:
            assert first.sequence is not None
            assert self.points[2].sequence is not None
            by_seq = self._power(values, 2, self.points[2].sequence / first.sequence)
        scale = first.batch**by_batch * (first.sequence or 1) ** by_seq
        return Extent(coefficient=values[0] / scale, batch=by_batch, seq=by_seq)

    def growing_like(self, extent: Extent, value: float) -> Extent:
        """Return the size that is `value` at the first point and grows as another does."""
        first = self.points[0]
        scale = first.batch**extent.batch * (first.sequence or 1) ** extent.seq
        return Extent(coefficient=value / scale, batch=extent.batch, seq=extent.seq)

    def _power(self, values: Sequence[float], other: int, factor: float) -> int:
        """Return 0, 1 or 2: the power by which a size grows with a dim `factor` times as large."""
        here, there = values[0], values[other]
        if here in {there, 0}:
            return 0
        power = min((0, 1, 2), key=lambda power: abs(there / here - factor**power))
        if abs(there - here * factor**power) > _NEGLIGIBLE * max(here, there):
            self.approximate.add(tuple(values))
        return power
