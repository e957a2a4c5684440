"""Models of a job as readers have them: their shape, depth and name in the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattree.capture import TransformerShape, catalog_entry, config_shape, known_by_sizes
from wattree.capture.mapping import shape_from_mapping


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
    return {"transformer": dict(block)} if known is None else known[0]
