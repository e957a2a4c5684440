"""Points: one value for every axis of a study."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

#: A value of an axis: a quantity in SI units, a number, a truth value, or a name.
Value = float | int | str

#: Digits of a key; 64 bits of a hash tell some millions of points apart.
_KEY_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignPoint:
    """One choice of all axes.

    Attributes:
        key: Hash of the values, the same in every process and on every machine.
        values: Axis → value; quantities in SI units.
    """

    key: str
    values: Mapping[str, Value]


def point_of(values: Mapping[str, Value]) -> DesignPoint:
    """Return the point with these values; their order does not matter to its key."""
    text = json.dumps(dict(values), sort_keys=True, ensure_ascii=True, allow_nan=False)
    return DesignPoint(
        key=hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS], values=dict(values)
    )
