"""Error handling of a rank: the first failing rank reports once, then ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn, TypeVar

from wattree.errors import CommunicationError, WattreeError
from wattree.runtime.launch import Launch, watch_parent
from wattree.runtime.launch.spawn import end_soon, leave_failure
from wattree.runtime.train.health import is_echo

T = TypeVar("T")

DEFECT, MISTAKE = 1, 2
#: A rank that only lost another one lets that one speak first. [s]
_AFTER_OTHERS_S = 1.0


def guarded(launch: Launch, act: Callable[[], T]) -> T:
    """Return the result of `act`; an error ends the rank.

    Raises:
        SystemExit: It failed, and its parent will say why.
        WattreeError: It failed, and no one else will say why.
    """
    watch_parent()
    try:
        return act()
    except Exception as error:
        echo = is_echo(error)
        code = MISTAKE if echo or isinstance(error, WattreeError) else DEFECT
        if launch.world > 1:
            end_soon(code)
        message = _message(error, launch, echo=echo)
        if leave_failure(launch.rank, code=code, message=message, is_echo=echo):
            raise SystemExit(code) from error
        if echo:
            time.sleep(_AFTER_OTHERS_S)
            raise CommunicationError(message) from error
        raise


def leave(code: int) -> NoReturn:
    """End a rank that is done, at once.

    Destructors that libraries leave to the end of a process may abort it although all is trained
    and written: threads of gloo did, once in some hundred runs.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - what Python itself would do first
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or no one reads it
            stream.flush()
    os._exit(code)


def _message(error: Exception, launch: Launch, *, echo: bool) -> str:
    if echo and not isinstance(error, CommunicationError):
        text = str(error).strip().splitlines()
        return (
            f"rank {launch.rank}: another rank is gone, or did not answer in time "
            f"({text[0][:200] if text else type(error).__name__}); see its own message"
        )
    if isinstance(error, WattreeError):
        return str(error)
    lines = "".join(traceback.format_exception(error))
    return f"rank {launch.rank}: {type(error).__name__}: {error}\n{lines}"
