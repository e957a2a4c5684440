"""Start and end times of all tasks in one step, simulated or real."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.graph import ExecutionGraph
from wattree.units import counted, format_time


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Trace:
    """Start and end of every task of an execution graph. Equal only to itself.

    Attributes:
        graph: What was executed.
        start_s, end_s: `(T,)`, from the beginning of the step. [s]
        peak_bytes: Highest memory of each rank class, with static memory, `(C,)`. [B]
        peak_task: Task at whose start the peak was reached, -1 for static memory alone, `(C,)`.
        events: Events that the executor handled.
        repeats: Tasks that come again before those after them; None where each comes once. Then
            all that follows is later than `start_s` and `end_s` have it.
    """

    graph: ExecutionGraph
    start_s: Floats
    end_s: Floats
    peak_bytes: Floats
    peak_task: Integers
    events: int
    repeats: Repeats | None = None

    def __repr__(self) -> str:
        found = f"{counted(len(self.start_s), 'task')}, {format_time(self.makespan_s)}"
        return f"<{type(self).__name__}: {found}>"

    @property
    def makespan_s(self) -> float:
        """End of the last task. [s]"""
        later_s = 0.0 if self.repeats is None else self.repeats.later_s
        return float(self.end_s.max(initial=0.0)) + later_s
