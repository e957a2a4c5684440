"""Strictly valid JSON: no NaN, no Infinity, plain types only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from wattree.files import write_atomic


def json_text(value: object) -> str:
    """Return `value` as indented JSON; numbers that are not finite become null."""
    return json.dumps(plain(value), indent=2, allow_nan=False) + "\n"


def write_json(value: object, destination: Path, *, standard_output: TextIO) -> None:
    """Write `value` to a file in one piece, or to `standard_output` if `destination` is `-`.

    Raises:
        OutputError: The file cannot be written.
    """
    text = json_text(value)
    if str(destination) == "-":
        standard_output.write(text)
        standard_output.flush()
    else:
        write_atomic(destination, text)


def plain(value: object) -> Any:
    """Return `value` made of dictionaries, lists, text, numbers, flags and null only."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else str(value)
