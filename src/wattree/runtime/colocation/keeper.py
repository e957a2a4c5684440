"""A small process that outlives its launcher, only to clean up.

    python -P -m wattree.runtime.colocation.keeper FOLDER STATE

A launcher that is killed can do nothing any more. Its keeper, in a session of its own, waits until
the pipe to it closes; where the launcher did not say that all is done, the keeper ends the job's
processes and removes its folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from wattree.runtime.colocation.clean import KEEPER, clear
from wattree.runtime.colocation.state import JobState

_DONE = b"done\n"
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Keeper:
    """The keeper of a job, as its launcher sees it.

    Args:
        state: Of the job; the keeper is noted in it.
    """

    def __init__(self, state: JobState) -> None:
        # Not the job's token: what clears up must not find itself.
        self._process = subprocess.Popen(  # noqa: S603 - this program
            [sys.executable, "-P", "-m", __name__, str(state.folder), state.text()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_ignore,  # noqa: PLW1509 - from its first moment; calls the system alone
        )
        state.record(KEEPER, self._process.pid)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def dismiss(self) -> None:
        """Let the keeper end: all work is done."""
        try:
            self._process.communicate(_DONE, timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()


def _ignore() -> None:
    """Ignore the signals that end a launcher, so that the keeper can clean up."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)


def main(folder: str, text: str) -> None:
    """Wait for the launcher to end, and clean up what it left.

    Args:
        text: The rest of its state; a temporary folder may be emptied under a job that takes days.
    """
    state = JobState.of(Path(folder), text)
    received = b""
    while part := os.read(0, 64):
        received += part
    if received == _DONE:
        return
    clear(state, keeps=frozenset({os.getpid()}))
    state.remove()


if __name__ == "__main__":
    main(*sys.argv[1:])
