"""The progress line of training."""

from __future__ import annotations

import sys
import time

from wattree.runtime.train.losses import LossAgreement

#: Between two lines, on a terminal and elsewhere. [s]
_TERMINAL_S, _FILE_S = 0.5, 5.0


class Progress:
    """Writes a line now and then; on a terminal over the one before.

    Args:
        steps: Of the whole run.
        batch: Samples of a step.
    """

    def __init__(self, steps: int, batch: int, *, quiet: bool) -> None:
        self._steps, self._batch, self._to = steps, batch, sys.stderr
        self._quiet, self._is_terminal = quiet, sys.stderr.isatty()
        self._reported_at_s = 0.0
        self._is_open = False

    def report(self, step: int, agreed: LossAgreement) -> None:
        """Print the progress of training, unless it was printed just now."""
        now_s = time.monotonic()
        pause_s = _TERMINAL_S if self._is_terminal else _FILE_S
        if self._quiet or (now_s - self._reported_at_s < pause_s and step < self._steps):
            return
        self._reported_at_s = now_s
        power = ""
        if agreed.power_w > 0:
            power = f"  {agreed.power_w:.1f} W" + (" (estimated)" if agreed.is_estimate else "")
        line = (
            f"step {step}/{self._steps}  loss {agreed.losses[-1]:.6g}  "
            f"{self._batch / agreed.step_s:,.0f} samples/s{power}"
        )
        self._to.write(f"\r\x1b[K{line}" if self._is_terminal else f"{line}\n")
        self._to.flush()
        self._is_open = self._is_terminal

    def say(self, line: str) -> None:
        """Write a line of its own."""
        if not self._quiet:
            self.close()
            self._to.write(f"wattree: {line}\n")
            self._to.flush()

    def close(self) -> None:
        """End a line that is still written over."""
        if self._is_open:
            self._to.write("\n")
            self._is_open = False
