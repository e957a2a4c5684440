"""Ends a script with a user error, without the stack of the patches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from wattree.errors import WattreeError
from wattree.runtime.launch.follow import report_to_launcher

_Found = TypeVar("_Found")


def end_by(call: Callable[[], _Found]) -> _Found:
    """Return the result of a call; its error ends the script, with one line."""
    try:
        return call()
    except WattreeError as error:
        if not report_to_launcher(str(error), code=2):
            sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from error
