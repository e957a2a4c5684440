"""Ends a script by an error that its user can mend, without the stack of what changed it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from wattree.errors import WattreeError
from wattree.runtime.launch.follow import report_to_launcher

_Found = TypeVar("_Found")


def end_by(call: Callable[[], _Found]) -> _Found:
    """Return what a call returns; its error ends the script, in a line."""
    try:
        return call()
    except WattreeError as error:
        if not report_to_launcher(str(error), code=2):
            sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from error
