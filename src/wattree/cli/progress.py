"""Progress of long runs as lines, for logs."""

from __future__ import annotations

import time

from wattree.cli.output import tell
from wattree.units import counted, format_time

#: Between two lines. [s]
_EVERY_S = 10.0


class Lines:
    """Reports the progress of a run on standard error at intervals.

    Attributes:
        quiet: Only `rate` is wanted.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self._began = self._reported_at_s = time.monotonic()

    def rate(self, done: int) -> str:
        """Return how many points were finished in a time."""
        passed = time.monotonic() - self._began
        if not done or passed <= 0:
            return ""
        rate = done / passed
        return f"{rate:.2g} points/s" if rate >= 0.1 else f"{1 / rate:.3g} s a point"

    def report(self, done: int, total: int, before: int) -> None:
        """Print it, unless it was printed a moment ago."""
        now = time.monotonic()
        if done == before and before:
            tell(f"wattree: {before:,} of {counted(total, 'point')} finished before")
        if now - self._reported_at_s < _EVERY_S or done == before:
            return
        self._reported_at_s = now
        left_s = (now - self._began) / (done - before) * (total - done)
        left = f", about {format_time(left_s)} left" if done < total else ""
        tell(f"wattree: {done:,} of {counted(total, 'point')}, {self.rate(done - before)}{left}")
