"""Dataclasses to plain types and back, for files whose keys are the fields of a type."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from wattree.errors import did_you_mean

T = TypeVar("T")


def as_plain(value: object) -> Any:
    """Return a value of dataclasses, tuples, mappings and enumerations in plain types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: as_plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    return str(value) if isinstance(value, StrEnum) else value


def from_plain(kind: type[T], found: object, problems: list[str]) -> T | None:
    """Return a dataclass with the values of a mapping, or None where there are problems.

    Args:
        kind: The dataclass; its type hints say what is expected.
        found: As read from a file.
        problems: Takes a line for each fault: its key, what was found and what is expected.
    """
    return _made(kind, found, "", problems)


def plain_schema(kind: type) -> dict[str, Any]:
    """Return the JSON schema of what `from_plain` takes for a dataclass (draft 2020-12)."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(kind).json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        if "properties" in part:
            part["additionalProperties"] = False
        if "description" in part:  # the docstring; what it says of its fields is for developers
            part["description"] = part["description"].split("\n")[0]
    return schema


def _made(kind: type[T], found: object, where: str, problems: list[str]) -> T | None:
    """Return a `kind` with the values of a mapping, or None after listing what is wrong."""
    if not isinstance(found, dict):
        problems.append(f"{where}: found {_shown(found)}, expected an object")
        return None
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    before = len(problems)
    values = {}
    for key, item in found.items():
        place = f"{where}.{key}".lstrip(".")
        if key not in fields:
            hint = did_you_mean(str(key), fields)
            problems.append(f"{place}: unknown key; {hint}known: {', '.join(sorted(fields))}")
        else:
            values[str(key)] = _value(hints[key], item, place, problems)
    for name, field in fields.items():
        given = name in values
        if not given and field.default is field.default_factory is dataclasses.MISSING:
            problems.append(f"{where}.{name}".lstrip(".") + ": is missing")
    return kind(**values) if len(problems) == before else None


def _value(hint: Any, item: object, where: str, problems: list[str]) -> Any:
    """Return `item` as its type hint wants it; None after listing what is wrong."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        wanted = next(option for option in arguments if option is not types.NoneType)
        return None if item is None else _value(wanted, item, where, problems)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _made(hint, item, where, problems)
    if origin is None:
        return _scalar(hint, item, where, problems)
    if origin is tuple and isinstance(item, list):
        of = arguments[0]
        return tuple(_value(of, x, f"{where}[{i}]", problems) for i, x in enumerate(item))
    if origin is not tuple and isinstance(item, dict):
        return {key: _value(arguments[1], x, f"{where}.{key}", problems) for key, x in item.items()}
    wanted = "a list" if origin is tuple else "an object"
    problems.append(f"{where}: found {_shown(item)}, expected {wanted}")
    return None


def _scalar(hint: Any, item: object, where: str, problems: list[str]) -> Any:
    if hint is float and isinstance(item, int | float) and not isinstance(item, bool):
        try:
            return float(item)
        except OverflowError:  # a whole number of hundreds of digits
            problems.append(f"{where}: found {_shown(item)}, expected a number below 1e308")
            return None
    if issubclass(hint, StrEnum):
        if item in list(hint):
            return hint(item)
        known = ", ".join(hint)
        problems.append(f"{where}: found {_shown(item)}, expected one of {known}")
        return None
    if type(item) is hint:
        return item
    words = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
    problems.append(f"{where}: found {_shown(item)}, expected {words[hint]}")
    return None


def _shown(item: object) -> str:
    if isinstance(item, dict | list):
        return "an object" if isinstance(item, dict) else "a list"
    if isinstance(item, float) and not math.isfinite(item):
        return str(item)
    return json.dumps(item)[:60]
