"""Records when a rank waited and for which stage: marks on a clock, or in a device's queue.

On a device a mark is an event in the queue of kernels: what lies between two events is what the
device saw, however far the program has run ahead, and recording one waits for nothing.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol


class StageClock(Protocol):
    """Creates marks and returns their times."""

    def mark(self) -> Any:
        """Return a mark of the current time."""
        ...

    def is_past(self, mark: Any) -> bool:
        """Return whether the time of a mark is known."""
        ...

    def seconds(self, mark: Any) -> float:
        """Return the time of a mark, on the monotonic clock. [s]"""
        ...

    def settle(self) -> None:
        """Wait until all marks are past."""
        ...


class CpuClock:
    """Marks are times of the monotonic clock."""

    def mark(self) -> float:
        """Return the time. [s]"""
        return time.monotonic()

    def is_past(self, mark: float) -> bool:
        """Return True: CPU marks are always past."""
        del mark
        return True

    def seconds(self, mark: float) -> float:
        """Return the mark. [s]"""
        return mark

    def settle(self) -> None:
        """Do nothing."""


class DeviceClock:
    """Marks are events in the current stream of a device.

    Args:
        device: The module `torch.cuda`, or what behaves like it.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        # The one wait: it says which host time the first event has.
        self._anchor = self.mark()
        self._anchor.synchronize()
        self._anchor_s = time.monotonic()

    def mark(self) -> Any:
        """Return an event, recorded in the current stream."""
        event = self._device.Event(enable_timing=True)
        event.record()
        return event

    def is_past(self, mark: Any) -> bool:
        """Return whether the device has reached an event."""
        return bool(mark.query())

    def seconds(self, mark: Any) -> float:
        """Return when the device reached an event. [s]

        Differences are single precision, so each event is the anchor of the next: hours after
        the first one a difference to it is good to a millisecond only.
        """
        self._anchor_s += float(self._anchor.elapsed_time(mark)) / 1e3
        self._anchor = mark
        return self._anchor_s

    def settle(self) -> None:
        """Wait until the device has done all its work."""
        self._device.synchronize()


class Timeline:
    """Intervals in which a rank waited for materials or communication, and its busy intervals.

    Attributes:
        clock: Where marks come from.
        listener: Called with each time that is added: its stage, its kind, its marks, and
            `exposed`, whether the step waited; None calls no one.
    """

    def __init__(self, clock: StageClock) -> None:
        self.clock = clock
        self.listener: Callable[..., None] | None = None
        self._pending: deque[tuple[str, bool, Any, Any]] = deque()
        self._exposed: dict[str, tuple[array[float], array[float]]] = {}
        self._busy: dict[str, tuple[array[float], array[float]]] = {}

    def add(self, stage: str, begin: Any, end: Any, *, exposed: bool, what: str = "") -> None:
        """Add an interval between two marks; thread-safe.

        Args:
            stage: What was done, or waited for.
            exposed: Whether the step waited for it; else it was only at work.
            what: What it was, for those who listen.
        """
        if self.listener is not None:
            self.listener(stage, what, begin, end, exposed=exposed)
        self._pending.append((stage, exposed, begin, end))

    def drain(self) -> None:
        """Convert past marks to times."""
        while self._pending and self.clock.is_past(self._pending[0][3]):
            stage, exposed, begin, end = self._pending.popleft()
            starts, ends = (self._exposed if exposed else self._busy).setdefault(
                stage, (array("d"), array("d"))
            )
            starts.append(self.clock.seconds(begin))
            ends.append(self.clock.seconds(end))

    def exposed(self, stage: str) -> tuple[array[float], array[float]]:
        """Return starts and ends of the intervals in which the step waited for a stage. [s]"""
        return self._exposed.get(stage, (array("d"), array("d")))

    def exposed_s(self, stage: str, start_s: float, end_s: float) -> float:
        """Return how long the step waited for a stage between two times. [s]"""
        return _inside(self.exposed(stage), start_s, end_s)

    def busy_s(self, stage: str, start_s: float, end_s: float) -> float:
        """Return how long a stage was at work between two times. [s]"""
        return _inside(self._busy.get(stage, (array("d"), array("d"))), start_s, end_s)


def _inside(times: tuple[array[float], array[float]], start_s: float, end_s: float) -> float:
    return sum(
        max(0.0, min(end, end_s) - max(start, start_s)) for start, end in zip(*times, strict=True)
    )
