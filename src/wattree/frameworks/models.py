"""Models of a job as readers have them: their shape, depth and name in the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from wattree.capture import (
    TransformerShape,
    catalog_entry,
    config_shape,
    configuration_names,
    known_by_sizes,
)
from wattree.capture.catalog_entries import is_model_name
from wattree.capture.configuration import is_read
from wattree.capture.load import config_file, names_configuration, read_config
from wattree.capture.mapping import shape_from_mapping
from wattree.frameworks.settings import Settings

_FOR_PEOPLE: Final = ("name", "architecture", "sources")
#: Of which a file may say other than the model has.
_DROPOUTS: Final = ("dropout", "attention_dropout")


def shape_of(model: str | Mapping[str, Any]) -> TransformerShape | None:
    """Return the shape of a model of the catalog, a `config.json` or a `transformer:` block.

    Of others it is None.

    Raises:
        WattreeError: There is no such model, or the block describes none.
    """
    if isinstance(model, Mapping):
        block = model.get("transformer")
        return None if block is None else shape_from_mapping(block, "model.transformer")
    if not model:
        return None
    config = _readable_config(model)
    return None if config is None else config_shape(config, model)


def _readable_config(model: str) -> Mapping[str, Any] | None:
    """Return the configuration of a model of the catalog or a file if it is read, not captured."""
    if names_configuration(model):
        config = read_config(config_file(Path(model)))
        return config if is_read(config) else None
    entry = catalog_entry(model)
    return None if entry.module else entry.config


def layers_of(model: str | Mapping[str, Any]) -> int:
    """Return the layers of a model, also of one with adapters; 0 where its shape is not known."""
    if isinstance(model, Mapping) and "lora" in model:
        model = model["name"]
    shape = shape_of(model)
    return 0 if shape is None else shape.layers


def named_by_sizes(block: Mapping[str, Any], positions: int = 0) -> str | dict[str, Any]:
    """Return the catalog's name of a model by its sizes, or the block as the key `model` has it.

    Args:
        block: Keys of a `transformer:` block.
        positions: As `known_by_sizes` has them.
    """
    known = known_by_sizes(block, positions)
    if known is None:
        return {"transformer": dict(block)}
    shape = shape_of(known[0])
    is_other = any(block.get(name, 0.0) != getattr(shape, name) for name in _DROPOUTS)
    return {"transformer": dict(block)} if is_other else known[0]


def with_predictions(model: str | dict[str, Any], count: int) -> str | dict[str, Any]:
    """Return a model, as a job has it, with modules that predict so many further tokens."""
    if not count:
        return model
    if isinstance(model, str):
        return {"name": model, "arguments": {"predictions": count}}
    return {"transformer": {**model["transformer"], "predictions": count}}


def catalog_name(name: str, settings: Settings) -> str:
    """Return the catalog's name of a model, also of its tuned versions, which have its sizes.

    Args:
        name: As a file has it, such as that of a repository.
        settings: Take a note of what was assumed.
    """
    if not is_model_name(name):
        return name
    found = catalog_entry(name).name
    if found != name:
        settings.assume(f"{name} has the sizes of {found}")
    return found


def with_overrides(name: str, overrides: Mapping[str, Any] | None) -> str | dict[str, Any]:
    """Return a model of the catalog with other keys of its `config.json`, as a job has it."""
    config = _readable_config(name) if is_model_name(name) else None
    if config is None or not overrides:
        return name
    before = config_shape(config, name)
    after = config_shape({**config, **overrides}, name)
    return name if before == after else _block_of(after)


def resized(model: str | Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a model with other sizes, as a job has it; None where its layers follow no pattern.

    Args:
        model: Name in the catalog, or the key `model` of a job.
        sizes: Field of its shape → value.
    """
    shape = shape_of(model)
    if shape is None:
        return None
    names = ("moe_layers", "window_layers", "no_rope_layers")
    chosen = {name: kept for name in names if (kept := getattr(shape, name)) is not None}
    layers = sizes.get("layers", shape.layers)
    if chosen and layers > shape.layers:
        return None
    fewer = {name: tuple(i for i in kept if i < layers) for name, kept in chosen.items()}
    return _block_of(replace(shape, **{**sizes, **fewer}))


def _block_of(shape: TransformerShape) -> dict[str, Any]:
    """Return a shape as the key `model` of a job has it."""
    usual = {each.name: each.default for each in fields(TransformerShape)}
    block = {
        key: list(value) if isinstance(value, tuple) else value
        for key, default in usual.items()
        if (value := getattr(shape, key)) != default and key not in _FOR_PEOPLE
    }
    return {"transformer": block}


@cache  # the catalog does not change
def catalog_vocabularies() -> tuple[int, ...]:
    """Return the sizes of vocabularies that models of the catalog have."""
    configs = (catalog_entry(name).config or {} for name in configuration_names())
    return tuple(sorted({size for each in configs if (size := each.get("vocab_size"))}))
