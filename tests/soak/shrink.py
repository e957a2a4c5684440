"""Smaller files that fail alike: parts are left out while what is left still fails."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from typing import Any

from tests.soak.mutations import text_of

__all__ = ["shrunk"]


def shrunk(content: bytes, fails: Callable[[bytes], bool], *, limit_s: float) -> bytes:
    """Return a smaller content that fails as well.

    Args:
        content: What fails.
        fails: Whether another one fails alike.
        limit_s: How long to try. [s]
    """
    until_s = time.monotonic() + limit_s
    content = _smaller_document(content, fails, until_s)
    for separator in (b"\n", b""):
        content = _with_fewer_parts(content, separator, fails, until_s)
    return content


def _with_fewer_parts(
    content: bytes, separator: bytes, fails: Callable[[bytes], bool], until_s: float
) -> bytes:
    """Leave out lines, or bytes: halves, then quarters, down to one (Zeller's `ddmin`)."""
    parts = (
        content.split(separator) if separator else [content[i : i + 1] for i in range(len(content))]
    )
    size = max(len(parts) // 2, 1)
    while size and time.monotonic() < until_s:
        begin, is_smaller = 0, False
        while begin < len(parts) and time.monotonic() < until_s:
            fewer = parts[:begin] + parts[begin + size :]
            if fewer and fails(separator.join(fewer)):
                parts, is_smaller = fewer, True
            else:
                begin += size
        size = size if is_smaller and size == 1 else size // 2
    return separator.join(parts)


def _smaller_document(content: bytes, fails: Callable[[bytes], bool], until_s: float) -> bytes:
    """Leave out keys and items of what was written as JSON, the largest parts first."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return content
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for place in sorted(_places(document), key=len):
            fewer = copy.deepcopy(document)
            if time.monotonic() > until_s:
                return content
            try:
                holder = fewer
                for part in place[:-1]:
                    holder = holder[part]
                del holder[place[-1]]
            except (KeyError, IndexError):  # left out with what held it
                continue
            if fails(text := text_of(fewer)):
                document, content, is_smaller = fewer, text, True
    return content


def _places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        items = list(value.items())
    else:
        items = list(enumerate(value)) if isinstance(value, list) else []
    found: list[tuple[Any, ...]] = []
    for key, item in items:
        found += [(*before, key), *_places(item, (*before, key))]
    return found
