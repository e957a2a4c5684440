"""Start and end times of all tasks in one step, simulated or real."""

from __future__ import annotations

from dataclasses import dataclass

from wattree.arrays import Floats, Integers
from wattree.graph import ExecutionGraph
from wattree.trace.repeats import Repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Start and end of every task of an execution graph.

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

    @property
    def makespan_s(self) -> float:
        """End of the last task. [s]"""
        later_s = 0.0 if self.repeats is None else self.repeats.later_s
        return float(self.end_s.max(initial=0.0)) + later_s
