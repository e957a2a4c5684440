"""References of OmegaConf, `${group.key}`, filled in from the file they stand in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from wattree.files import refusal
from wattree.job.problems import MOST_PROBLEMS

_REFERENCE: Final = re.compile(r"\$\{([^${}]+)\}")
#: References to references are followed so often.
_MOST_STEPS: Final = 16
_MISSING: Final = object()


def filled_in(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return settings in which `${a.b}` is what the file has there; functions stay as they are.

    Args:
        values: As read.

    Raises:
        JobError: A reference names a setting that the file does not have.
    """
    problems: list[str] = []
    found: dict[str, Any] = _filled(dict(values), values, problems, "")
    if problems:
        raise refusal(str(path), problems, most=MOST_PROBLEMS)
    return found


def _filled(value: Any, whole: Mapping[str, Any], problems: list[str], place: str) -> Any:
    if isinstance(value, dict):
        return {
            key: _filled(each, whole, problems, f"{place}{key}.") for key, each in value.items()
        }
    if isinstance(value, list):
        return [_filled(each, whole, problems, place) for each in value]
    for _ in range(_MOST_STEPS):
        if not isinstance(value, str) or (met := _REFERENCE.search(value)) is None:
            return value
        if ":" in met[1]:  # such as ${oc.env:HOME}
            return value
        target = _at(whole, met[1])
        if target is _MISSING:  # older files have no section of variables, and some have both
            target = _at(whole, f"variables.{met[1]}")
        if target is _MISSING:
            problems.append(f"{place.rstrip('.')}: names {met[0]}, which the file does not say")
            return None
        value = target if met[0] == value else value.replace(met[0], str(target))
    problems.append(f"{place.rstrip('.')}: its references lead in a circle")
    return None


def _at(whole: Mapping[str, Any], key: str) -> Any:
    found: Any = whole
    for name in key.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return _MISSING
        found = found[name]
    return found
