"""What launched kernels, and when: the step and the operator that each kernel belongs to."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from wattree.arrays import Floats


@dataclass(slots=True)
class Numbered:
    """What events of one kind say of a number that others carry, too: a launch, or an operator."""

    number: array[int] = field(default_factory=lambda: array("q"))
    value: array[float] = field(default_factory=lambda: array("d"))

    def add(self, number: int, value: float) -> None:
        """Append one event; a negative number is none."""
        if number >= 0:
            self.number.append(number)
            self.value.append(value)

    def of(self, numbers: array[int]) -> Floats:
        """Return the value of each number; NaN where no event has it."""
        wanted = np.array(numbers, dtype=np.int64)
        found = np.full(len(wanted), np.nan)
        known = np.array(self.number, dtype=np.int64)
        if len(known):
            order = np.argsort(known, kind="stable")
            place = np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)
            same = known[order][place] == wanted
            found[same] = np.array(self.value)[order][place][same]
        return found


def step_windows(
    marks: Mapping[int, tuple[float, float]], launch_s: Floats, busy: Floats
) -> dict[int, tuple[float, float]]:
    """Return when each step began and ended, in the order of their numbers. [s]

    A device works on a step while its host launches the next. A moment of the host has come on the
    device when all that was launched before is done: so what was in flight when the trace began
    belongs to no step.

    Args:
        marks: Number of each step → when it began and ended on the host. [s]
        launch_s: When each piece of work was launched; NaN if unknown. [s]
        busy: When it ran: rows (start, end). [s]
    """
    known = np.isfinite(launch_s)
    if not known.any():
        return dict(sorted(marks.items()))
    before = ~known & (busy[:, 0] < busy[known, 0].min())
    order = np.argsort(launch_s[known], kind="stable")
    launched_s = launch_s[known][order]
    first_s = busy[before, 1].max(initial=-np.inf)
    done_s = np.maximum.accumulate(np.concatenate([[first_s], busy[known, 1][order]]))

    def come(at_s: float) -> float:
        return max(at_s, float(done_s[np.searchsorted(launched_s, at_s)]))

    return {number: (come(begin), come(end)) for number, (begin, end) in sorted(marks.items())}
