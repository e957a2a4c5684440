"""Numbers of a loader that record who changed them.

Libraries make a loader anew from one that a script made, with another sampler (Lightning does for
each rank): its batch and its workers are shares already, and must not be shared again.
"""

from __future__ import annotations

from typing import Any


class ChangedNumber(int):
    """A number that was changed; arithmetic with it gives plain numbers."""

    by: frozenset[str] = frozenset()


def changed_number(value: int, by: str, *, before: Any) -> ChangedNumber:
    """Return a number that remembers who changed it, and who had changed `before`."""
    found = ChangedNumber(value)
    found.by = getattr(before, "by", frozenset()) | {by}
    return found


def is_changed(value: Any, by: str) -> bool:
    """Return whether a number is derived from one that `by` changed."""
    return by in getattr(value, "by", ())
