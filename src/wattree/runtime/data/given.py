"""Samples of a user's function, `file.py:dataset`."""

from __future__ import annotations

import traceback
from collections.abc import Sized
from typing import Any

import torch
from torch import Tensor

from wattree.errors import JobError, WattreeError
from wattree.job import ModuleSource
from wattree.runtime.data.sets import SampleSet, Wanted, WantedKind

_EXPECTED = (
    "expected a pair (inputs, targets) of tensors with a sample in each row, or a map-style "
    "torch.utils.data.Dataset of such pairs; inputs of a module that takes several are a tuple"
)
_PLACE = "data.source"


def given_set(source: ModuleSource, wanted: Wanted) -> SampleSet:
    """Return the samples that a user's function returns, all in memory.

    Args:
        source: The function; it is run.

    Raises:
        JobError: It cannot be imported or fails, or what it returns is no set of samples, or none
            for the model.
    """
    found = _called(source)
    inputs, targets = _pair(found, source.name)
    parts = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    if not all(isinstance(part, Tensor) for part in parts) or not isinstance(
        targets, Tensor | None
    ):
        raise JobError(_PLACE, [f"{source.name}: {_EXPECTED}"])
    rows = {int(part.shape[0]) for part in (*parts, *((targets,) if targets is not None else ()))}
    if len(rows) != 1 or rows == {0}:
        counts = ", ".join(map(str, sorted(rows)))
        raise JobError(_PLACE, [f"{source.name}: found {counts} rows, expected as many of all"])
    _check(parts, wanted, source.name)
    return SampleSet(name=source.name, inputs=parts, targets=targets)


def _called(source: ModuleSource) -> Any:
    """Return the function's result; errors name the job's key."""
    from wattree.capture.record.source import named_function

    try:
        return named_function(source)()
    except WattreeError as error:
        raise JobError(_PLACE, [str(error)]) from error
    except MemoryError:
        raise
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        raise JobError(
            _PLACE,
            [
                f"{source.name}: failed with {type(error).__name__}: {error} "
                f"({line.filename}, line {line.lineno}); {_EXPECTED}"
            ],
        ) from error


def _pair(found: Any, name: str) -> tuple[Any, Any]:
    is_set = isinstance(found, Sized) and hasattr(found, "__getitem__")
    if is_set and not isinstance(found, tuple | list | dict | Tensor):
        pairs = [found[number] for number in range(len(found))]
        if not pairs or not all(
            isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs
        ):
            raise JobError(_PLACE, [f"{name}: {_EXPECTED}"])
        first, second = zip(*pairs, strict=True)
        try:
            return _stacked(first), _stacked(second)
        except (RuntimeError, TypeError, ValueError) as error:
            raise JobError(_PLACE, [f"{name}: {error}; {_EXPECTED}"]) from error
    if isinstance(found, tuple | list) and len(found) == 2:
        return found[0], found[1]
    raise JobError(_PLACE, [f"{name}: found a {type(found).__name__}, {_EXPECTED}"])


def _stacked(values: tuple[Any, ...]) -> Any:
    """Return samples as rows; where each is a tuple with tensors, those of each member."""
    if isinstance(values[0], tuple) and any(isinstance(part, Tensor) for part in values[0]):
        return tuple(map(_stacked, zip(*values, strict=True)))
    return torch.stack([torch.as_tensor(value) for value in values])


def _check(inputs: tuple[Tensor, ...], wanted: Wanted, name: str) -> None:
    shapes = {WantedKind.VECTORS: wanted.width, WantedKind.TOKENS: wanted.sequence}
    length = shapes.get(wanted.kind)
    if length is None:
        return
    shape = tuple(inputs[0].shape)
    if len(inputs) != 1 or len(shape) != 2 or shape[1] != length:
        raise JobError(
            _PLACE,
            [f"{name}: found samples of {list(shape[1:])}, expected [{length}] for the model"],
        )
    if wanted.kind is WantedKind.TOKENS and int(inputs[0].max()) >= wanted.width:
        raise JobError(
            _PLACE,
            [f"{name}: found the token {int(inputs[0].max())}, the model has {wanted.width}"],
        )
