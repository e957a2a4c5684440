"""Messages between authenticated launchers: JSON lines with a value, a failure or the end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from wattree.json_text import parsed_object
from wattree.runtime.launch.spawn import Failure
from wattree.trace.plain import from_plain

#: Longer lines are refused before they are parsed. [B]
LONGEST_LINE = 1 << 22
#: What a failure says at most, in characters: an error and its traceback.
_LONGEST_TEXT = 1 << 16
_KEYS = {"value", "failure", "verdict", "done"}


def line_of(message: Mapping[str, Any]) -> bytes:
    """Return a message as one line; failures in it become plain values."""
    plain = {
        key: asdict(value) if isinstance(value, Failure) else value
        for key, value in message.items()
    }
    return json.dumps(plain).encode() + b"\n"


def message_of(line: bytes) -> dict[str, Any]:
    """Return the content of a line: keys of `_KEYS`, failures as exceptions.

    Raises:
        ValueError: No launcher says such a thing.
    """
    found = parsed_object(line, limit_bytes=LONGEST_LINE)
    if not found or not set(found) <= _KEYS:
        raise ValueError("not a message")
    for key in ("failure", "verdict"):
        if key in found:
            found[key] = _failure_of(found[key])
    return found


def _failure_of(record: object) -> Failure:
    """Return a failure of plain values, each of which has its own type and range."""
    found = from_plain(Failure, record, [])
    if found is None:
        raise ValueError("not a failure")
    if not 0 <= found.code < 1 << 31 or math.isnan(found.at_s):
        raise ValueError("code or time of a failure")
    return replace(found, message=found.message[:_LONGEST_TEXT])
