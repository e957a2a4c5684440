"""Mappings within mappings by dotted names, as messages and tables write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def dotted(values: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted name and value of all that is no mapping: `model.ffn.width`.

    Args:
        above: What names begin with.
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
