"""TOML in and out: sections of scalars and lists, which is all that configurations have."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wattree.errors import JobError
from wattree.files import read_text


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file as plain values.

    Raises:
        JobError: It cannot be read, or is no TOML.
    """
    try:
        found = tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:  # of a number of 5,000 digits as well
        what = str(error) or "nested too deeply"
        raise JobError(str(path), [f"{what}; expected TOML"]) from error
    if not found:
        raise JobError(str(path), ["the file holds nothing, expected TOML"])
    return found


def toml_text(sections: Mapping[str, Mapping[str, object]], *, head: str = "") -> str:
    """Return sections as TOML.

    Args:
        sections: Name, dotted where it lies within another → keys and values.
        head: A comment before them, without its sign.
    """
    lines = [f"# {line}" for line in head.splitlines()]
    for name, keys in sections.items():
        lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in keys.items())]
    return "\n".join(lines).lstrip("\n") + "\n"


def _value(value: object) -> str:
    """Return a scalar or a list as TOML has it: for these, as JSON has it."""
    return json.dumps(list(value) if isinstance(value, tuple) else value)
