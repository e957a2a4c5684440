"""Stop requests: Ctrl-C, or a batch system's SIGTERM."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopAsked:
    """Records whether this process was asked to stop while the block runs.

    The first signal lets the step end and a checkpoint be written; a second one interrupts.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        """Watch for signals, in the main thread alone: no other one may."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _take(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
