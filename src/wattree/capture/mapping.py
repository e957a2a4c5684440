"""A transformer written down in a job file: the `transformer:` block.

Keys are the fields of `TransformerShape`, required are `layers`, `hidden`, `heads` and `vocab`;
what is left out has its default there. Three shorthands say which layers differ:

- `dense_layers: n`: the first n layers are no mixtures;
- `moe_every: n`: of the others, every n-th layer is a mixture;
- `full_attention_every: n`: every n-th layer has no window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, Final

from wattree.capture.config_reader import ConfigReader, field_value
from wattree.capture.shape import TransformerShape
from wattree.capture.transformer import build_transformer
from wattree.errors import ModelError
from wattree.graph import ModelGraph

_SHORTHANDS: Final = ("dense_layers", "moe_every", "full_attention_every")
#: Fields for which zero says "none", so that it may be written; elsewhere leave the key out.
_MAY_BE_ZERO: Final = frozenset(
    {
        "disentangled_positions",
        "encoder_layers",
        "experts",
        "kv_lora_rank",
        "max_positions",
        "q_lora_rank",
        "relative_buckets",
        "shared_ffn",
        "token_types",
        "top_k",
        "unread_parameters",
    }
)
_FIELDS: Final = tuple(field for field in fields(TransformerShape) if field.name != "sources")

#: Keys that a `transformer:` block may have.
TRANSFORMER_KEYS: Final = (*(field.name for field in _FIELDS), *_SHORTHANDS)


def transformer_from_mapping(mapping: Mapping[str, Any], where: str) -> ModelGraph:
    """Return the model graph that a `transformer:` block describes.

    Args:
        mapping: Keys and values as read from a file.
        where: File and key, as an error message should name them.

    Raises:
        ModelError: Keys are unknown or missing, or values impossible; all of them are listed.
    """
    shape = shape_from_mapping(mapping, where)
    return build_transformer(shape, is_stated="decoder_sequence_ratio" in mapping)


def shape_from_mapping(mapping: Mapping[str, Any], where: str) -> TransformerShape:
    """Return the shape that a `transformer:` block describes; see `transformer_from_mapping`."""
    if not isinstance(mapping, Mapping):
        raise ModelError(f"{where}: found {mapping!r}, expected a mapping with layers, hidden, …")
    reader = ConfigReader(mapping, where)
    reader.only_keys(TRANSFORMER_KEYS)
    values = {
        field.name: field_value(
            reader,
            field.name,
            field.name,
            default=None if field.default is MISSING else field.default,
            least=0 if field.name in _MAY_BE_ZERO else 1,
        )
        for field in _FIELDS
        if reader.has(field.name) or field.default is MISSING
    }
    reader.finish()
    if values.get("gated"):  # as most that have gates
        values.setdefault("activation", "silu")
    values |= _layer_lists(reader, values["layers"])
    reader.finish()
    # Built under the name of its place, so that a refusal says where; renamed once it stands.
    shape = TransformerShape(**{**values, "name": where}, sources=(where,))
    return replace(shape, name=values.get("name", where))


def _layer_lists(reader: ConfigReader, layers: int) -> dict[str, tuple[int, ...]]:
    """Return the lists of layers from their shorthands."""
    lists: dict[str, tuple[int, ...]] = {}
    for name, shorthands in {
        "moe_layers": ("dense_layers", "moe_every"),
        "window_layers": ("full_attention_every",),
    }.items():
        used = [key for key in shorthands if reader.has(key)]
        if used and reader.has(name):
            reader.problems.append(f"{used[0]}: {name} states the same; give one of them")
        if used:
            dense = reader.count("dense_layers", default=0, least=0, most=layers)
            every = reader.count("moe_every", default=1)
            full = reader.count("full_attention_every", default=1)
            lists[name] = (
                tuple(i for i in range(dense, layers) if (i - dense + 1) % every == 0)
                if name == "moe_layers"
                else tuple(i for i in range(layers) if (i + 1) % full)
            )
    return lists
