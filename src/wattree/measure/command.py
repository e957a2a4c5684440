"""Run a user's command: forward signals, wait for its end, end the processes it leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import IO

from wattree.errors import RunError
from wattree.process import handled_signals

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Time between the first signal to a command, the second one, and killing it. [s]
_GRACE_S = 10.0
#: Time for the processes that it leaves behind. [s]
_LEFT_S = 2.0


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended.

    Attributes:
        code: Its exit code; 128 + n where signal n ended it.
        interrupted_by: The first signal that was passed on to it; None if none was.
    """

    code: int
    interrupted_by: int | None = None


def run_command(command: Sequence[str], *, stdout: IO[str] | None = None) -> CommandEnd:
    """Run a command to its end; forward signals, and kill it if it ignores them.

    It has a process group of its own, so that its helpers get the signals, too. A second signal
    does not wait for the grace to go by.

    Args:
        stdout: Where its output goes; None for that of this process.

    Raises:
        RunError: It cannot be started.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 - running what the user names is the purpose
            list(command), stdout=stdout, start_new_session=True
        )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise RunError(command[0], [f"cannot be started ({why})"]) from error
    with _forwarding(process.pid) as received:
        code = process.wait()
    if received:
        _end_group(process.pid)
    return CommandEnd(128 - code if code < 0 else code, received[0] if received else None)


@contextlib.contextmanager
def _forwarding(group: int) -> Iterator[list[int]]:
    """Forward signals to a process group while the block runs; yield the received ones."""
    received: list[int] = []
    timers: list[threading.Timer] = []

    def escalate() -> None:
        _signal(group, signal.SIGTERM)
        timers.append(_timer(_GRACE_S, lambda: _signal(group, signal.SIGKILL)))

    def forward(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)
        # A second request to stop is sent on as a stronger signal.
        stronger = {1: number, 2: signal.SIGTERM}.get(len(received), signal.SIGKILL)
        _signal(group, stronger)
        if len(received) == 1:
            timers.append(_timer(_GRACE_S, escalate))

    try:
        with handled_signals(_FORWARDED, forward):
            yield received
    finally:
        for timer in timers:
            timer.cancel()


def _timer(after_s: float, act: object) -> threading.Timer:
    assert callable(act)
    timer = threading.Timer(after_s, act)
    timer.daemon = True
    timer.start()
    return timer


def _signal(group: int, number: int) -> bool:
    """Send a signal to a process group; return whether the group still exists."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _end_group(group: int) -> None:
    """End the processes that an interrupted command left: they would continue to draw power."""
    until_s = time.monotonic() + _LEFT_S
    running = _signal(group, signal.SIGTERM)
    while running and time.monotonic() < until_s:
        time.sleep(0.02)
        running = _signal(group, 0)
    if running:
        _signal(group, signal.SIGKILL)
