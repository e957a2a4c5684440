"""Models of a job as readers have them: their shape, depth and name in the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from wattree.capture import (
    TransformerShape,
    catalog_entry,
    config_shape,
    configuration_names,
    known_by_sizes,
)
from wattree.capture.mapping import shape_from_mapping

#: Of which a file may say other than the model has.
_DROPOUTS: Final = ("dropout", "attention_dropout")


def shape_of(model: str | Mapping[str, Any]) -> TransformerShape | None:
    """Return the shape of a model of the catalog, or of a `transformer:` block; None for others.

    Raises:
        WattreeError: There is no such model, or the block describes none.
    """
    if isinstance(model, Mapping):
        block = model.get("transformer")
        return None if block is None else shape_from_mapping(block, "model.transformer")
    if not model:
        return None
    config = catalog_entry(model).config
    return None if config is None else config_shape(config, model)


def layers_of(model: str | Mapping[str, Any]) -> int:
    """Return the layers of a model; 0 where its shape is not known."""
    shape = shape_of(model)
    return 0 if shape is None else shape.layers


def named_by_sizes(block: Mapping[str, Any]) -> str | dict[str, Any]:
    """Return the catalog's name of a model by its sizes, or the block as the key `model` has it.

    Args:
        block: Keys of a `transformer:` block.
    """
    known = known_by_sizes(block)
    if known is None:
        return {"transformer": dict(block)}
    shape = shape_of(known[0])
    is_other = any(block.get(name, 0.0) != getattr(shape, name) for name in _DROPOUTS)
    return {"transformer": dict(block)} if is_other else known[0]


@cache  # the catalog does not change
def catalog_vocabularies() -> tuple[int, ...]:
    """Return the sizes of vocabularies that models of the catalog have."""
    configs = (catalog_entry(name).config or {} for name in configuration_names())
    return tuple(sorted({size for each in configs if (size := each.get("vocab_size"))}))
