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
        steady_s: A moment from which all classes do for a period what is repeated. [s]
        begin, end: First task of each class's turn, and the first after it, `(C,)`.
    """

    times: int
    period_s: float
    steady_s: float
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

    def in_turn(self, rows: Floats) -> Floats:
        """Return what of rows (start, end) lies in one period. [s]"""
        return np.clip(rows, self.steady_s, self.steady_s + self.period_s)
