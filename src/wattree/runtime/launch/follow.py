"""Makes any Python program a rank that reports its failure to the launcher.

Called where a program starts (the folder that `wattree launch` puts on its path does so), before it
has loaded anything. An uncaught error is left where the launcher looks, and not printed by every
rank: the launcher prints the first.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from types import TracebackType

from wattree.runtime.launch.spawn import FAILURES, end_soon, leave_failure, watch_parent

#: Set in a rank, so that programs that it starts are not taken for it.
_FOLLOWS = "WATTREE_FOLLOWS"


def follow(environment: Mapping[str, str]) -> bool:
    """Report uncaught errors to the launcher; return whether there is one."""
    rank = environment.get("RANK", "")
    if FAILURES not in environment or _FOLLOWS in environment or not rank.isdigit():
        return False
    os.environ[_FOLLOWS] = "1"
    watch_parent()
    before, process = sys.excepthook, os.getpid()

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        is_here = os.getpid() == process  # a forked helper is no rank
        if not is_here or not isinstance(error, Exception):
            before(kind, error, trace)
            return
        lines = "".join(traceback.format_exception(kind, error, trace))
        message = f"rank {rank}: {kind.__name__}: {error}\n{lines.rstrip()}"
        if not report_to_launcher(message, code=1, is_echo=_is_echo(error)):
            before(kind, error, trace)
        end_soon(1)

    sys.excepthook = tell
    return True


def report_to_launcher(message: str, *, code: int, is_echo: bool = False) -> bool:
    """Write this rank's failure where its launcher reads it; return whether there is one.

    Args:
        message: In the user's words.
        code: The rank's exit code.
        is_echo: It only noticed that another rank is gone.
    """
    rank = os.environ.get("RANK", "")
    return rank.isdigit() and leave_failure(int(rank), code=code, message=message, is_echo=is_echo)


def _is_echo(error: BaseException) -> bool:
    """Return whether an error only reports that another rank ended; False without torch."""
    if "torch" not in sys.modules:
        return False
    from wattree.runtime.train.health import is_echo

    return is_echo(error)
