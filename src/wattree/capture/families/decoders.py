"""What decoders have that no single key says: layers with windows, rotations, key/value heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families.common import every_nth, sliding_layers
from wattree.capture.families.registry import extension


@extension
def rotations_in_windows(_: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Leave rotations out of layers without a window, of models that have any."""
    if not shape["window"]:
        return {"window_layers": None}
    full = (index for index in range(shape["layers"]) if index not in shape["window_layers"])
    return {"no_rope_layers": tuple(full)}


@extension
def plain_layers(reader: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add the layers without rotations: zeros of `no_rope_layers`, or one in so many layers."""
    rotated = reader.indices("no_rope_layers")
    if not rotated:
        interval = reader.count("no_rope_layer_interval", default=4)
        return {"no_rope_layers": every_nth(shape["layers"], interval)}
    reader.require_length("no_rope_layers", rotated, shape["layers"])
    plain = tuple(index for index, is_rotated in enumerate(rotated) if not is_rotated)
    return {"no_rope_layers": plain}


@extension
def windows_without_rotations(reader: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add the windows of SmolLM 3, which `use_sliding_window` turns on."""
    if not reader.flag("use_sliding_window", default=False):
        return {}
    marked = sliding_layers(reader, shape["layers"])
    return {
        "window": reader.count("sliding_window", default=0, null=0),
        "window_layers": shape["no_rope_layers"] if marked is None else marked,
    }


@extension
def upper_windows(reader: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add the windows of Qwen, which `use_sliding_window` turns on for the upper layers."""
    if not reader.flag("use_sliding_window", default=False):
        return {}
    marked = sliding_layers(reader, shape["layers"])
    if marked is None:
        first = reader.count("max_window_layers", default=28, least=0)
        marked = tuple(range(first, shape["layers"]))
    return {"window": reader.count("sliding_window", default=4096), "window_layers": marked}


@extension
def local_layers(reader: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add the layers that `attention_types`, `[[[kind, …], repeats], …]`, makes local."""
    layers, groups = shape["layers"], reader.sequence("attention_types")
    if groups is None:
        return {"window_layers": tuple(range(1, layers, 2))}
    kinds: list[str] = []
    for group in groups:
        match group:
            case [[*names], int(repeats)] if 0 < repeats * len(names) <= layers:
                kinds += [str(name) for name in names] * repeats
            case _:
                reader.fault("attention_types", group, "[[global or local, …], repeats]")
                return {}
    if unknown := set(kinds) - {"global", "local"}:
        reader.fault("attention_types", min(unknown), "global or local")
    if len(kinds) != layers:
        reader.fault("attention_types", f"{len(kinds)} layers", f"{layers}, as num_layers states")
    local = tuple(index for index, kind in enumerate(kinds) if kind == "local")
    return {"window_layers": local}


@extension
def last_norm(reader: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add whether OPT has a norm after the last layer."""
    is_removed = reader.flag("_remove_final_layer_norm", default=False)
    return {"final_norm": shape["norm_placement"] == "pre" and not is_removed}


@extension
def new_decoder(reader: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add what Falcon's newer layers have: groups of heads, and norms for each branch."""
    if not reader.flag("new_decoder_architecture", default=False):
        return {}
    kv = reader.count("num_kv_heads", "n_head_kv", default=shape["heads"])
    reader.require_divisor("num_kv_heads", kv, "num_attention_heads", shape["heads"])
    norms = reader.count("num_ln_in_parallel_attn", default=2)
    return {"kv_heads": kv, "parallel": True, "parallel_norms": norms}


@extension
def expanded(reader: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add the width of the feed-forward part as a multiple of the model's."""
    return {"ffn": reader.count("expansion_ratio", default=4) * shape["hidden"]}
