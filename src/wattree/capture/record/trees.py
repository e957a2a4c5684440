"""Tensors in nested arguments and results: lists, tuples, mappings, dataclasses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in `value`, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from tensors_in(getattr(value, one.name, None))


def map_tensors(value: Any, made: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return `value` with every tensor replaced; values without tensors are returned unchanged."""
    if isinstance(value, torch.Tensor):
        return made(value)
    if next(tensors_in(value), None) is None:
        return value
    if isinstance(value, Mapping):
        copied: Any = copy.copy(value)
        for key, item in value.items():
            copied[key] = map_tensors(item, made)
        return copied
    if isinstance(value, list | tuple):
        items = [map_tensors(item, made) for item in value]
        kind = type(value)
        return kind(*items) if hasattr(value, "_fields") else kind(items)
    copied = copy.copy(value)
    for one in fields(value):
        object.__setattr__(copied, one.name, map_tensors(getattr(value, one.name), made))
    return copied
