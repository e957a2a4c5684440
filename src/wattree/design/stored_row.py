"""One point as a row of a study's file: its content and its checksum.

A database finds damage of its pages' structure, not a bit that flipped inside a text: every row
carries a checksum of all that results depend on. Who holds a point until when is not part of it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from wattree.design.outcome import Outcome, outcome_from_json, outcome_json
from wattree.design.points import DesignPoint
from wattree.errors import DamagedRowError
from wattree.json_text import parsed_object

#: Digits of a checksum. 128 bits of SHA-256: no accident passes, and it is hashed in microseconds.
_DIGITS = 32


def point_text(point: DesignPoint) -> str:
    """Return the values of a point as the row holds them."""
    return json.dumps(dict(point.values), allow_nan=False)


def outcome_text(outcome: Outcome) -> str:
    """Return the outcome of a point as stored in the row."""
    return json.dumps(outcome_json(outcome), allow_nan=False)


def row_checksum(key: str, ordinal: int, point: str, outcome: str | None) -> str:
    """Return the checksum of a row."""
    text = json.dumps([key, ordinal, point, outcome])
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def check_row(key: Any, ordinal: Any, point: Any, outcome: Any, checksum: Any) -> None:
    """Raise an error for a row that does not match its checksum.

    Raises:
        DamagedRowError: It is not.
    """
    try:
        is_whole = row_checksum(key, ordinal, point, outcome) == checksum
    except TypeError:  # damage can make a BLOB of a text
        is_whole = False
    if not is_whole:
        raise DamagedRowError("its checksum does not match")


def read_point(key: str, text: str) -> DesignPoint:
    """Return the point of a row.

    Raises:
        ValueError: The text is none of `point_text`.
    """
    return DesignPoint(key=key, values=parsed_object(text))


def read_outcome(text: str) -> Outcome:
    """Return the outcome of a row.

    Raises:
        ValueError: The text is none of `outcome_text`.
    """
    try:
        return outcome_from_json(parsed_object(text))
    except (AttributeError, KeyError, TypeError) as error:
        raise DamagedRowError(f"is no outcome ({type(error).__name__}: {error})") from error
