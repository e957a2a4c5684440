"""A part of a step that is executed several times, and listed once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats, Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Turns of all rank classes that come again, as they are, before what is listed after them.

    Attributes:
        times: How often they come again.
        period_s: How much later each time. [s]
        steady_s: Moments between which each class begins a period that comes again, `(C, 2)`. [s]
        begin, end: First task of each class's turn, and the first after it, `(C,)`.
    """

    times: int
    period_s: float
    steady_s: Floats
    begin: Integers
    end: Integers

    @property
    def later_s(self) -> float:
        """How much later all that follows is than listed. [s]"""
        return self.times * self.period_s

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The tasks that come again."""
        return tuple(dict.fromkeys(zip(self.begin.tolist(), self.end.tolist(), strict=True)))

    def counts(self, tasks: int) -> Floats:
        """Return how often each task is executed, `(T,)`."""
        found = np.ones(tasks)
        for begin, end in self.ranges:
            found[begin:end] += self.times
        return found

    def in_turn(self, rows: Floats, rank_class: int) -> Floats:
        """Return what of a class's rows (start, end) lies in one period. [s]"""
        from_s = self.steady_s[rank_class, 0]
        return np.clip(rows, from_s, from_s + self.period_s)
