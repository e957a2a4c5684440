"""Fields of a hardware file: values with their sources.

Knows how one field is written and what may be wrong with it. Which fields a device or a node has
is in `load`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattree.errors import JobError, UnitError, did_you_mean
from wattree.units import UNITS, parse_quantity

_CITED = frozenset({"value", "source"})
_LABEL = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
#: What a source says that is no one's publication; the reason follows.
_ESTIMATE = "estimate:"


@dataclass(frozen=True, slots=True)
class CitedFigure:
    """Format of a cited number in a file.

    Attributes:
        dimension: A key of `units.UNITS`; `number` or `count` where there is no unit.
        low: Smallest plausible value. [SI]
        high: Largest plausible value. [SI]
        is_optional: It may be left out; it is not read then.
        may_be_unknown: It may be null.
    """

    key: str
    dimension: str
    low: float
    high: float
    is_optional: bool = False
    may_be_unknown: bool = False


class Fields:
    """One mapping of a hardware file, read key by key.

    Problems are collected, so that a file is refused once with all of them; until `close` has
    been called, what the methods return may be a stand-in and must not be used.

    Attributes:
        sources: Name given to a field → the citation of its value, written out.
    """

    def __init__(self, path: str, mapping: Mapping[Any, Any]) -> None:
        self.sources: dict[str, str] = {}
        self._path = path
        self._problems: list[str] = []
        self._citations: Mapping[str, str] = {}
        self._mapping, self._where = mapping, ""
        self._known: set[str] = set()
        self._citations = self._read_citations()

    def section(self, key: str) -> Fields:
        """Return the fields of a nested mapping. Problems and sources go to the same lists."""
        self._known.add(key)
        found = self._mapping.get(key)
        if not isinstance(found, Mapping):
            self._add(key, f"{_found(found)}, expected a mapping")
            found = {}
        nested = object.__new__(Fields)
        nested.sources, nested._path, nested._problems = self.sources, self._path, self._problems
        nested._citations, nested._known = self._citations, set()
        nested._mapping, nested._where = found, f"{self._where}{key}."
        return nested

    def text(self, key: str, choices: Collection[str] = ()) -> str:
        """Return a text, one of `choices` if there are any."""
        self._known.add(key)
        found = self._mapping.get(key)
        if not isinstance(found, str) or not found.strip():
            self._add(key, f"{_found(found)}, expected {_one_of(choices) or 'a text'}")
            return ""
        if choices and found not in choices:
            hint = did_you_mean(found, choices, before="; ", after="")
            self._add(key, f"found '{found}', expected {_one_of(choices)}{hint}")
        return found

    def label(self, key: str) -> str:
        """Return a cited word of small letters, digits and dashes, empty without the key."""
        self._known.add(key)
        value = self._cited(key, key) if key in self._mapping else ""
        if value == "" or (isinstance(value, str) and _LABEL.fullmatch(value)):
            return value
        if value is not None:
            self._add(f"{key}.value", f"{_found(value)}, expected a word such as 'gh100'")
        return ""

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, empty where the key is absent."""
        self._known.add(key)
        found = self._mapping.get(key, [])
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            self._add(key, f"{_found(found)}, expected a list of texts")
            return ()
        return tuple(found)

    def quantity(self, key: str, dimension: str, *, name: str, low: float, high: float) -> float:
        """Return a cited quantity with a unit, in the SI unit of `dimension`.

        Args:
            key: Where it stands in the file.
            dimension: A key of `units.UNITS`.
            name: What `sources` calls it.
            low: Smallest plausible value; zero allows zero. [SI]
            high: Largest plausible value. [SI]
        """
        value = self._cited(key, name)
        if value is None:
            return low
        try:
            found = parse_quantity(value, dimension, positive=low > 0)
        except UnitError as error:
            self._add(f"{key}.value", str(error))
            return low
        if not low <= found <= high:
            unit = next(unit for unit, factor in UNITS[dimension].items() if factor <= 1)
            factor = UNITS[dimension][unit]
            span = f"{low / factor:.4g} to {high / factor:.4g} {unit}"
            self._add(f"{key}.value", f"found '{value}', expected {span}")
        return found

    def quantities(
        self, keys: Sequence[str], dimension: str, *, name: str, low: float, high: float
    ) -> dict[str, float]:
        """Return the fields of `keys` that are present, each as `quantity` returns it."""
        self._known.update(keys)
        return {
            key: self.quantity(key, dimension, name=f"{name}.{key}", low=low, high=high)
            for key in keys
            if key in self._mapping
        }

    def figures(self, figures: Mapping[str, CitedFigure], prefix: str = "") -> dict[str, Any]:
        """Return name → value of those figures that the file has, or must have.

        Args:
            figures: What a thing calls them → how the file does.
            prefix: Before each name in `sources`.
        """
        found: dict[str, Any] = {}
        for name, figure in figures.items():
            key, low, high, cited = figure.key, figure.low, figure.high, prefix + name
            if figure.is_optional and key not in self._mapping:
                continue
            if figure.may_be_unknown and key in self._mapping and self._mapping[key] is None:
                self._known.add(key)
                found[name] = None
            elif figure.dimension == "count":
                found[name] = self.count(key, name=cited, low=int(low), high=int(high))
            elif figure.dimension == "number":
                found[name] = self.number(key, name=cited, low=low, high=high)
            else:
                found[name] = self.quantity(key, figure.dimension, name=cited, low=low, high=high)
        return found

    def number(self, key: str, *, name: str, low: float, high: float) -> float:
        """Return a cited number without a unit, from `low` to `high`."""
        value = self._cited(key, name)
        if value is None:
            return float(low)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._add(f"{key}.value", f"{_found(value)}, expected a number without a unit")
            return float(low)
        if not low <= value <= high:
            self._add(f"{key}.value", f"found {value}, expected {low:g} to {high:g}")
            return float(low)
        return float(value)

    def count(self, key: str, *, name: str, low: int, high: int) -> int:
        """Return a cited whole number, from `low` to `high`."""
        problems = len(self._problems)
        value = self.number(key, name=name, low=low, high=high)
        if not value.is_integer() and len(self._problems) == problems:
            self._add(f"{key}.value", f"found {value:g}, expected a whole number")
        return int(value)

    def counts(self, key: str, *, name: str, high: int) -> tuple[int, ...] | None:
        """Return a cited list of whole numbers from 1 to `high`, one to four of them."""
        value = self._cited(key, name)
        if value is None:
            return None
        if isinstance(value, list) and 1 <= len(value) <= 4:
            counts = tuple(item for item in value if type(item) is int and 1 <= item <= high)
            if len(counts) == len(value):
                return counts
        self._add(f"{key}.value", f"{_found(value)}, expected 1 to 4 whole numbers up to {high}")
        return None

    def entries(self, key: str, *, name: str) -> list[Mapping[Any, Any]]:
        """Return a cited list of mappings, whose keys the caller checks."""
        value = self._cited(key, name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            self._add(f"{key}.value", f"{_found(value)}, expected a list of mappings")
            return []
        return list(value)

    def refuse(self, key: str, problem: str) -> None:
        """Note a problem that a caller found with the content of a known `key`."""
        self._known.add(key)
        self._add(key, problem)

    def cite(self, name: str, source: str) -> None:
        """Note the source of a value that has no field of its own."""
        self.sources[name] = source

    def flag(self, key: str, *, name: str) -> bool:
        """Return a cited truth value."""
        value = self._cited(key, name)
        if value is not None and not isinstance(value, bool):
            self._add(f"{key}.value", f"{_found(value)}, expected true or false")
        return value is True

    def __contains__(self, key: str) -> bool:
        return key in self._mapping

    def keys(self) -> tuple[str, ...]:
        """Return the keys of the file at this level."""
        return tuple(str(key) for key in self._mapping)

    def end(self) -> None:
        """Note every key that was not read: most likely a typo."""
        for key in self.keys():
            if key not in self._known:
                self._add(key, unknown_key(key, self._known))

    def close(self) -> None:
        """End the reading of the whole file.

        Raises:
            JobError: There was a problem; all of them are listed.
        """
        self.end()
        if self._problems:
            raise JobError(self._path, self._problems)

    def _read_citations(self) -> Mapping[str, str]:
        self._known.add("sources")
        found = self._mapping.get("sources", {})
        if not isinstance(found, Mapping):
            self._add("sources", f"{_found(found)}, expected a mapping of short names to citations")
            return {}
        for key, citation in found.items():
            if not isinstance(citation, str) or not citation.strip():
                self._add(f"sources.{key}", f"{_found(citation)}, expected a citation")
        return {str(key): str(citation) for key, citation in found.items()}

    def _cited(self, key: str, name: str) -> object:
        """Return the `value` of a field and note its source; None stands for a noted problem."""
        self._known.add(key)
        if key not in self._mapping:
            self._add(key, "is missing, expected {value: …, source: …}")
            return None
        found = self._mapping[key]
        if not isinstance(found, Mapping):
            self._add(key, f"{_found(found)}, expected {{value: …, source: …}}")
            return None
        for extra in found:
            if extra not in _CITED:
                self._add(f"{key}.{extra}", unknown_key(extra, _CITED))
        self._cite(key, name, found.get("source"))
        if found.get("value") is None:
            self._add(f"{key}.value", "is missing, expected a value")
        return found.get("value")

    def _cite(self, key: str, name: str, source: object) -> None:
        if isinstance(source, str) and source in self._citations:
            self.sources[name] = self._citations[source]
        elif isinstance(source, str) and source.startswith(_ESTIMATE):
            if not source.removeprefix(_ESTIMATE).strip():
                self._add(f"{key}.source", f"found '{source}', expected the reason after it")
            self.sources[name] = source
        else:
            keys = ", ".join(self._citations) or "none yet"
            self._add(
                f"{key}.source",
                f"{_found(source)}, expected a key of 'sources' ({keys}) or 'estimate: <reason>'",
            )

    def _add(self, key: str, problem: str) -> None:
        self._problems.append(f"{self._where}{key}: {problem}")


def unknown_key(key: object, known: Collection[str]) -> str:
    """Return the message for an unknown key, with the nearest known key as a suggestion."""
    hint = did_you_mean(str(key), known)
    return f"unknown key; {hint}expected {', '.join(sorted(known))}"


def _found(value: object) -> str:
    if value is None:
        return "is missing"
    shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:79]}…"
    return f"found {shown}"


def _one_of(choices: Collection[str]) -> str:
    return f"one of {', '.join(sorted(choices))}" if choices else ""
