"""Fields of hardware files by their dotted paths: read, set and scaled without reading the file.

A field stands in a file as `{value: …, source: …}`; names and kinds stand there bare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wattree.errors import UnitError
from wattree.units import any_quantity

#: Keys that stand bare even where a file does not have them yet.
_BARE = frozenset({"topology", "access", "attached"})
#: Digits that survive a change of units and back.
_DIGITS = 12


def written(value: float, unit: str | None, factor: float) -> str | float:
    """Return a value in SI units as a file writes it.

    Args:
        value: In SI units, or a number without a unit.
        unit: Unit to write; None for a number.
        factor: SI value of one unit.
    """
    return value if unit is None else f"{value / factor:.{_DIGITS}g} {unit}"


def value_at(mapping: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Return the value of a file at a path, without its source; None if it has none."""
    found: Any = mapping
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found["value"] if _is_cited(found) else found


def number_at(mapping: Mapping[str, Any], keys: Sequence[str], factor: float) -> float | None:
    """Return the value at a path as a number of units of `factor`; None where there is none."""
    found = value_at(mapping, keys)
    if isinstance(found, str):
        quantity = any_quantity(found)
        return None if quantity is None else quantity[0] / factor
    return float(found) if isinstance(found, int | float) else None


def with_value(
    mapping: Mapping[str, Any], keys: Sequence[str], value: Any, source: str
) -> dict[str, Any]:
    """Return a copy of a file's mapping that has `value` at a path; sections are made as needed.

    Args:
        mapping: The file's.
        keys: The path.
        value: As a file writes it.
    """
    key, *rest = keys
    old = mapping.get(key)
    if rest:
        section = old if isinstance(old, Mapping) else {}
        return {**mapping, key: with_value(section, rest, value, source)}
    bare = isinstance(old, str | list) or key in _BARE
    bare = bare or (isinstance(old, Mapping) and not _is_cited(old))
    return {**mapping, key: value if bare else {"value": value, "source": f"estimate: {source}"}}


def scaled(
    mapping: Mapping[str, Any], keys: Sequence[str], factor: float, source: str
) -> dict[str, Any]:
    """Return a copy in which the value at a path, or every value below it, is times `factor`.

    Raises:
        UnitError: There is nothing at the path, or something that is no number.
    """
    key, *rest = keys
    old = mapping.get(key)
    if rest:
        section = old if isinstance(old, Mapping) else {}
        return {**mapping, key: scaled(section, rest, factor, source)}
    if isinstance(old, Mapping) and not _is_cited(old):
        inner: Mapping[str, Any] = old
        for name in tuple(old):
            inner = scaled(inner, [name], factor, source)
        return {**mapping, key: inner}
    value = value_at(mapping, [key])
    note = {"source": f"estimate: {source}"}
    return {**mapping, key: {"value": _times(value, factor, key), **note}}


def _times(value: object, factor: float, key: str) -> object:
    if isinstance(value, str) and (quantity := any_quantity(value)) is not None:
        si, unit, size = quantity
        return written(si * factor, unit, size)
    if isinstance(value, int | float) and not isinstance(value, bool):
        product = value * factor
        return round(product) if isinstance(value, int) and float(product).is_integer() else product
    what = "nothing" if value is None else repr(value)
    raise UnitError(f"found {what} at {key} to scale, expected a number or a quantity")


def _is_cited(found: object) -> bool:
    return isinstance(found, Mapping) and "value" in found
