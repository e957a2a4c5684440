"""Finds the catalog model with the sizes of a `transformer:` block, for its other keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Final

from wattree.capture.catalog_entries import catalog_entry, configuration_names
from wattree.capture.huggingface import config_shape, readable_model_types
from wattree.capture.mapping import shape_from_mapping
from wattree.capture.shape import TransformerShape
from wattree.errors import ModelError

#: Fields that tell models apart by size.
_SIZES: Final = ("layers", "hidden", "heads", "gated", "experts", "top_k", "expert_ffn")
#: Those that models with compressed keys and values say in other fields.
_OF_PLAIN_ATTENTION: Final = ("kv_heads", "head_dim")
#: What a block has to say before its sizes can be those of a known model.
_NEEDED: Final = frozenset({"layers", "hidden", "heads", "gated", "vocab"})
#: Shorthands of a block → the field that they fill.
_SHORTHANDS: Final = {"full_attention_every": "window_layers"}
#: Facts of a catalog entry that a block does not take over: its names, and sizes.
_OWN: Final = frozenset(
    {
        *("name", "architecture", "sources", "vocab", "padded_vocab", "tied_embedding", "ffn"),
        *("moe_layers", "dropout", "attention_dropout", "embedding_dropout"),
        *_SIZES,
        *_OF_PLAIN_ATTENTION,
    }
)
#: What tells no models apart: activations have several names.
_NOT_COMPARED: Final = _OWN | {"activation"}


def known_by_sizes(
    block: Mapping[str, Any], positions: int = 0
) -> tuple[str, dict[str, Any]] | None:
    """Return the catalog's model of the same sizes, and the keys that the block leaves to it.

    Norms, positions, biases, windows and compressed attention follow from the model, and few people
    write them down. What the block says counts before what the model has.

    Args:
        block: Keys and values as read from a file.
        positions: Longest sequence by which models that are equal elsewhere, tied heads included,
            are told apart; with another, or none, it is the one with the longest.

    Returns:
        Name and keys; None if no model has these sizes, or several that differ elsewhere.
    """
    if not block.keys() >= _NEEDED or not block.keys() & {"ffn", "expert_ffn"}:
        return None
    try:
        shape = shape_from_mapping(block, "")
    except ModelError:
        return None  # said where the model is built
    found = [known for known in _alike(shape) if _agrees(known, shape, block)]
    facts = [_facts(known, shape, block) for known in found]
    if not facts or any(fact != facts[0] for fact in facts):
        return None

    def nearness(known: TransformerShape) -> tuple[bool, bool, int]:
        is_tied = known.tied_embedding == shape.tied_embedding
        return is_tied, known.max_positions == positions, known.max_positions

    return max(found, key=nearness).name, facts[0]


def _alike(shape: TransformerShape) -> Iterator[TransformerShape]:
    key = _sizes(shape)
    return (known for known in _catalog_shapes() if _sizes(known) == key)


def _sizes(shape: TransformerShape) -> tuple[object, ...]:
    return tuple(getattr(shape, name) for name in _SIZES)


@cache  # the catalog does not change
def _catalog_shapes() -> tuple[TransformerShape, ...]:
    entries = [catalog_entry(name) for name in configuration_names()]
    return tuple(
        config_shape(entry.config, entry.name)
        for entry in entries
        if entry.config is not None and entry.config["model_type"] in readable_model_types()
    )


def _agrees(known: TransformerShape, shape: TransformerShape, block: Mapping[str, Any]) -> bool:
    """Return whether the optional keys agree if both block and model have them."""
    compared = {name for name in block if hasattr(known, name)} - _NOT_COMPARED
    if len(_mixtures(known)) < known.layers:
        compared.add("ffn")
    if not known.kv_lora_rank:
        compared |= set(_OF_PLAIN_ATTENTION)
    is_same = all(getattr(known, name) == getattr(shape, name) for name in compared)
    is_same = is_same and _mixtures(known) == _mixtures(shape)
    return is_same and shape.vocab in (known.vocab, known.padded_vocab)


def _mixtures(shape: TransformerShape) -> tuple[int, ...]:
    """Return the layers that have experts."""
    if not shape.experts:
        return ()
    return tuple(range(shape.layers)) if shape.moe_layers is None else shape.moe_layers


def _facts(
    known: TransformerShape, shape: TransformerShape, block: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields in which a known model differs and that a block leaves out."""
    skipped = {*block, *_OWN, *(field for key, field in _SHORTHANDS.items() if key in block)}
    if known.positions != "learned":
        skipped |= {"max_positions", "position_rows"}
    if not known.encoder_layers:
        skipped |= {"encoder_ffn", "encoder_heads"}
    names = (field.name for field in fields(TransformerShape) if field.name not in skipped)
    return {
        name: value for name in names if (value := getattr(known, name)) != getattr(shape, name)
    }
