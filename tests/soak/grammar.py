"""Documents that a JSON schema allows, or nearly: drawn from the schema of the reader itself."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from tests.soak.mutations import JUNK, Pool

__all__ = ["drawn"]

#: Nested deeper, a value is one that good files have.
_DEEPEST = 7
_NUMBERS = (0, 1, 2, 4, 8, 3, 64, 4096, 0.5, 1.5, -1, 1e6, 2**31)
_QUANTITIES = ("2 GB/s", "80 GB", "5 us", "400 W", "1 h", "30 d", "0.1 USD/kWh", "2 USD/h", "0 s")


def drawn(
    random: random.Random, schema: Mapping[str, Any], pool: Pool, junk: float = 0.02
) -> dict[str, Any]:
    """Return a mapping with the keys of a schema.

    Args:
        random: Where chances come from.
        schema: JSON schema of an object, as pydantic writes it.
        pool: Values that good files have, by key.
        junk: How often a value is any other.
    """
    return dict(_Drawing(random, schema, pool, junk).of_object(schema, 0))


class _Drawing:
    def __init__(
        self, random: random.Random, schema: Mapping[str, Any], pool: Pool, junk: float
    ) -> None:
        self._random, self._pool, self._junk = random, pool, junk
        self._named = schema.get("$defs", {})

    def of_object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties, needed = schema.get("properties", {}), set(schema.get("required", ()))
        share = self._random.choice((0.15, 0.4))
        return {
            key: self._value(key, inner, depth + 1)
            for key, inner in properties.items()
            if key in needed or self._random.random() < share
        }

    def _value(self, key: str, schema: Mapping[str, Any], depth: int) -> Any:
        chance = self._random.random()
        if chance < self._junk:
            return self._random.choice(JUNK)
        if chance < 0.45 or depth > _DEEPEST:
            like = self._pool.by_key.get(key)
            if like:
                return self._random.choice(like)
        return self._of(key, schema, depth)

    def _of(self, key: str, schema: Mapping[str, Any], depth: int) -> Any:
        if "$ref" in schema:
            schema = self._named[schema["$ref"].rsplit("/", 1)[1]]
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return self._of(key, self._random.choice(schema[several]), depth)
        if schema.get("type") == "object":
            whole = self.of_object if schema.get("properties") else self._mapping
            return whole(schema, depth)
        if schema.get("type") == "array":
            count = self._random.choice((0, 1, 1, 2, 3))
            items = schema.get("items", {})
            return [self._of(key, items, depth + 1) for _ in range(count)]
        return self._random.choice(self._scalars(key, schema))

    def _scalars(self, key: str, schema: Mapping[str, Any]) -> Sequence[Any]:
        """Return what may stand where there is neither a mapping nor a list."""
        if "const" in schema:
            return [schema["const"]]
        if "enum" in schema:
            return list(schema["enum"])
        kinds = {"integer": _NUMBERS, "number": _NUMBERS, "boolean": (True, False), "null": (None,)}
        if (known := kinds.get(schema.get("type", ""))) is not None:
            return known
        if self._random.random() < 0.8:
            return [*_QUANTITIES, *_NUMBERS, *self._pool.by_key.get(key, ())]
        return self._pool.values or JUNK

    def _mapping(self, schema: Mapping[str, Any], depth: int) -> dict[Any, Any]:
        inner = schema.get("additionalProperties")
        inner = inner if isinstance(inner, dict) else {}
        keys = (*self._pool.keys, "0", "1", "7", "*", "")
        count = 0 if depth > _DEEPEST else self._random.choice((0, 1, 2, 3))
        return {
            (name := self._random.choice(keys)): self._value(name, inner, depth + 1)
            for _ in range(count)
        }
