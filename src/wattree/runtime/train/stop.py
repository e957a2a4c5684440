"""Stop requests: Ctrl-C, or a batch system's SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from wattree.process import handled_signals

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopAsked:
    """Records whether this process was asked to stop.

    The first signal lets the step end and a checkpoint be written; a second one interrupts.
    """

    def __init__(self) -> None:
        self.asked = False

    def take(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        del number, frame
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def watched_stop() -> Iterator[StopAsked]:
    """Watch for signals while the block runs."""
    stop = StopAsked()
    with handled_signals(_SIGNALS, stop.take):
        yield stop
