"""JSON schemas of hardware files, taken from what the loader reads.

The readers of `load` run once on fields that note each key they are asked for, so that a key is
declared in one place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from wattree.hardware.fields import CitedFigure, Fields
from wattree.hardware.load import READERS
from wattree.hardware.wiring import LINK_KEYS
from wattree.units import UNITS

_SOURCES = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "description": "short names of sources, each with its citation",
}
_SOURCE = {"type": "string", "description": "a key of sources, or 'estimate: <reason>'"}
_LINKS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {key: {} for key in sorted(LINK_KEYS)},
        "required": ["ends", "bandwidth"],
        "additionalProperties": False,
    },
}


def hardware_schema(kind: str) -> dict[str, Any]:
    """Return the JSON schema of a hardware file (draft 2020-12).

    Args:
        kind: `device`, `node`, `fabric` or `site`.
    """
    whole = _AskedFields()
    READERS[kind](whole)
    least = _AskedFields(whole)
    READERS[kind](least)
    schema = whole.schema(least)
    schema["properties"] |= {"sources": _SOURCES}
    if kind == "node":
        schema["properties"] |= {
            "links": _cited(_LINKS),
            "topology": {"type": "string", "description": "a file of links, in place of links"},
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{kind.capitalize()} file",
        **(_or_like_another(schema) if kind == "node" else schema),
    }


def _or_like_another(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a node that may leave out what another has, if it says which."""
    partial = {key: _without_required(each) for key, each in schema["properties"].items()}
    like = {"type": "string", "description": "a node, or a file: all that is left out is as there"}
    part = {
        "type": "object",
        "properties": {"like": like, **partial},
        "required": ["name", "title", "like"],
        "additionalProperties": False,
    }
    return {"if": {"required": ["like"]}, "then": part, "else": dict(schema)}


def _without_required(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a section of which any key may be left out; of a figure, unchanged."""
    if "source" in section.get("properties", {}):
        return dict(section)
    return {key: each for key, each in section.items() if key != "required"}


def _cited(value: Mapping[str, Any], description: str = "") -> dict[str, Any]:
    """Return the schema of a value with its source."""
    return {
        "type": "object",
        "properties": {"value": dict(value), "source": _SOURCE},
        "required": ["value", "source"],
        "additionalProperties": False,
        **({"description": description} if description else {}),
    }


class _AskedFields(Fields):
    """Fields of a file with all optional keys, or with none, which note what is asked of them.

    What they return is plausible and means nothing.

    Args:
        whole: Fields with all keys, of which these have the mappings and what must be there.
    """

    def __init__(self, whole: _AskedFields | None = None) -> None:
        super().__init__("", {})
        self._whole = whole
        self._asked: dict[str, dict[str, Any]] = {}
        self.nested: dict[str, _AskedFields] = {}
        self._optional: set[str] = set()

    def schema(self, least: _AskedFields) -> dict[str, Any]:
        """Return the schema of the mapping that these fields are.

        Args:
            least: The same fields of a file without optional keys.
        """
        nested = {key: each.schema(least.nested[key]) for key, each in self.nested.items()}
        needed = (least._asked.keys() | least.nested.keys()) - least._optional
        properties = self._asked | nested
        return {
            "type": "object",
            "properties": properties,
            "required": [key for key in properties if key in needed],
            "additionalProperties": False,
        }

    def __contains__(self, key: str) -> bool:
        self._optional.add(key)
        return self._whole is None or key in self._whole.nested

    def section(self, key: str) -> Fields:
        whole = self._whole.nested[key] if self._whole else None
        return self.nested.setdefault(key, _AskedFields(whole))

    def text(self, key: str, choices: Collection[str] = ()) -> str:
        self._asked[key] = {"type": "string", **({"enum": sorted(choices)} if choices else {})}
        return min(choices, default="")

    def label(self, key: str) -> str:
        self._note_optional(key, _cited({"type": "string"}))
        return ""

    def texts(self, key: str) -> tuple[str, ...]:
        self._note_optional(key, {"type": "array", "items": {"type": "string"}})
        return ()

    def quantity(self, key: str, dimension: str, *, name: str, low: float, high: float) -> float:
        self._asked[key] = _quantity(dimension)
        return low

    def quantities(
        self, keys: Sequence[str], dimension: str, *, name: str, low: float, high: float
    ) -> dict[str, float]:
        for key in keys:
            self._note_optional(key, _quantity(dimension))
        return {} if self._whole else dict.fromkeys(keys, low)

    def figures(self, figures: Mapping[str, CitedFigure], prefix: str = "") -> dict[str, Any]:
        asked = {
            name: figure
            for name, figure in figures.items()
            if self._whole is None or not figure.is_optional
        }
        for figure in asked.values():
            schema = _figure(figure)
            if figure.may_be_unknown:
                schema = {"anyOf": [schema, {"type": "null"}]}
            self._asked[figure.key] = schema
        return {name: figure.low for name, figure in asked.items()}

    def count(self, key: str, *, name: str, low: int, high: int) -> int:
        self._asked[key] = _figure(CitedFigure(key, "count", low, high))
        return low

    def counts(self, key: str, *, name: str, high: int) -> tuple[int, ...] | None:
        whole = {"type": "integer", "minimum": 1, "maximum": high}
        self._asked[key] = _cited({"type": "array", "items": whole, "minItems": 1, "maxItems": 4})
        return None

    def flag(self, key: str, *, name: str) -> bool:
        self._asked[key] = _cited({"type": "boolean"})
        return True

    def _note_optional(self, key: str, schema: dict[str, Any]) -> None:
        if self._whole is None:
            self._asked[key] = schema


def _figure(figure: CitedFigure) -> dict[str, Any]:
    """Return the schema of a number with its source."""
    if figure.dimension in {"count", "number"}:
        kind = "integer" if figure.dimension == "count" else "number"
        return _cited({"type": kind, "minimum": figure.low, "maximum": figure.high})
    return _quantity(figure.dimension)


def _quantity(dimension: str) -> dict[str, Any]:
    units = ", ".join(UNITS[dimension])
    return _cited({"type": "string"}, f"a number with a unit: {units}")
