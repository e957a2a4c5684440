"""Serialization of model graphs as text, for shipped models and stored captures.

Fields with their default are left out. Reading builds the same values again, so that a graph that
was read equals the one that was written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from wattree.errors import ModelError
from wattree.graph.model_graph import ModelGraph
from wattree.json_text import parsed_object

#: Raised when a reader of the version before would misread a file.
_VERSION: Final = 1
#: A hundred times the largest graph that ships. [B]
_LIMIT_BYTES: Final = 1 << 26


def graph_to_json(graph: ModelGraph) -> str:
    """Return the graph as JSON. The same graph gives the same text."""
    return json.dumps({"version": _VERSION, "graph": _plain(graph)}, separators=(",", ":"))


def graph_from_json(text: str) -> ModelGraph:
    """Return the graph that `graph_to_json` wrote.

    Raises:
        ModelError: It is not such text, or of another version.
    """
    try:
        found = parsed_object(text, limit_bytes=_LIMIT_BYTES)
        version = found["version"]
        if version != _VERSION:
            raise ModelError(f"model graph: found version {version}, expected {_VERSION}")
        graph = _reader(ModelGraph)(found["graph"])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ModelError(f"model graph: found text that holds none: {error}") from error
    assert isinstance(graph, ModelGraph)
    return graph


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {
            field.name: _plain(held)
            for field in fields(value)
            if field.init and not _is_default(field, held := getattr(value, field.name))
        }
    if isinstance(value, Mapping):
        return {key: _plain(held) for key, held in value.items()}
    if isinstance(value, tuple):
        return [_plain(held) for held in value]
    return str(value) if isinstance(value, StrEnum) else value


def _is_default(field: Any, held: Any) -> bool:
    if field.default_factory is not MISSING:
        return bool(held == field.default_factory())
    return field.default is not MISSING and bool(held == field.default)


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return what makes a value of type `kind` of its plain form."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (inner,) = (_reader(each) for each in arguments if each is not NoneType)
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        each = _reader(arguments[0])
        return lambda values: tuple(map(each, values))
    if origin is not None and issubclass(origin, Mapping):
        held = _reader(arguments[1])
        return lambda mapping: {key: held(value) for key, value in mapping.items()}
    if is_dataclass(kind):
        return _dataclass_reader(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind
    return lambda value: value


def _dataclass_reader(kind: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind) if field.init}
    return lambda given: kind(**{name: readers[name](value) for name, value in given.items()})
