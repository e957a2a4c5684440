"""Running a built-in model on fake tensors. Everything here needs torch."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from wattree.capture.catalog_entries import CatalogEntry
from wattree.capture.configuration import INPUT_SIZES, recorded_configuration
from wattree.capture.record import record
from wattree.capture.recording import Recording
from wattree.errors import ModelError


def options_of(model: CatalogEntry) -> tuple[str, ...]:
    """Return the names of the options that the model's `build` and `example_inputs` have."""
    if model.config is not None:
        return tuple(INPUT_SIZES)
    module = _module(model)
    names = [*_parameters(module.build), *_parameters(module.example_inputs)]
    return tuple(dict.fromkeys(name for name in names if name not in _GIVEN))


def built(model: CatalogEntry, options: Mapping[str, Any] | None = None) -> Any:
    """Return the module of a built-in model, on the device that torch makes tensors on now."""
    return _call(_module(model).build, _chosen(model, options))


def recorded(
    model: CatalogEntry,
    options: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    narrow: bool = False,
) -> Recording:
    """Return the recording of a built-in model.

    Args:
        options: In place of those of its entry, such as `image_size`.
        name: For messages; None: the model's.
        narrow: With parameters of 16 bits, if the library builds it.

    Raises:
        ModelError: It has no such option, or cannot be run with it.
    """
    chosen = _chosen(model, options)
    if model.config is not None:
        return recorded_configuration(
            model.config,
            name or model.name,
            sequence=model.sequence_length,
            narrow=narrow,
            sizes=tuple(chosen.items()),
        )
    inputs = _module(model).example_inputs

    def example(batch: int, sequence: int | None) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        sizes = (batch,) if sequence is None else (batch, sequence)
        return _call(inputs, chosen, *sizes), {}

    return record(
        lambda: built(model, options),
        example,
        name=name or model.name,
        sequence=model.sequence_length,
    )


#: Parameters of `example_inputs` that the recorder gives.
_GIVEN = ("batch", "sequence_length")


def _module(model: CatalogEntry) -> Any:
    return importlib.import_module(f"wattree.capture.zoo.{model.module}")


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _chosen(model: CatalogEntry, options: Mapping[str, Any] | None) -> dict[str, Any]:
    known = options_of(model)
    unknown = [name for name in options or {} if name not in known]
    if unknown:
        raise ModelError(
            f"model {model.name}: found {', '.join(map(repr, unknown))}, expected options among "
            f"{', '.join(known)}"
        )
    return {**model.options, **(options or {})}


def _call(function: Callable[..., Any], options: Mapping[str, Any], *sizes: int) -> Any:
    names = _parameters(function)
    return function(*sizes, **{name: value for name, value in options.items() if name in names})
