"""What mixtures of experts have that no single key says: which layers, how many experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families.common import every_nth, sliding_layers
from wattree.capture.families.registry import extension


@extension
def sparse_steps(reader: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add the layers of Qwen with experts: each n-th, but for those that are listed."""
    step = reader.count("decoder_sparse_step", default=1)
    dense = set(reader.indices("mlp_only_layers", below=shape["layers"]) or ())
    return {"moe_layers": tuple(i for i in every_nth(shape["layers"], step) if i not in dense)}


@extension
def clamped_gates(_: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Name the activation of gates that clamp what they read."""
    return {"activation": f"{shape['activation']}_clamped"}


@extension
def chosen_by_layer(reader: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add the experts of a token, a number or a list of equal ones, and as wide a shared expert."""
    each = (reader.indices("moe_topk") or ()) if reader.is_list("moe_topk") else ()
    if each:
        reader.require_length("moe_topk", each, shape["layers"])
    if len(chosen := set(each)) > 1:
        reader.fault("moe_topk", sorted(chosen), "one number for all layers")
    top_k = max(chosen) if chosen else reader.count("moe_topk", "num_experts_per_tok")
    return {"top_k": top_k, "shared_ffn": shape["ffn"]}


@extension
def between_layers(reader: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add ERNIE's layers with experts, from one to another, and what these share."""
    layers = shape["layers"]
    first = reader.count("moe_layer_start_index", default=1, least=0)
    end = reader.count("moe_layer_end_index", default=-1, least=-1)
    below = layers if end < 0 else min(end + 1, layers)
    mixed = every_nth(below, reader.count("moe_layer_interval", default=1), first)
    shared = reader.count("moe_num_shared_experts", default=2, least=0)
    return {
        "shared_ffn": shape["expert_ffn"] * shared,
        "moe_layers": mixed,
        "unread_parameters": shape["experts"] * len(mixed),
    }


@extension
def after_dense_layers(reader: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add DeepSeek's layers with experts, after dense ones, and what these share."""
    dense = reader.count("first_k_dense_replace", least=0)
    freq = reader.count("moe_layer_freq", default=1)
    return {
        "shared_ffn": shape["expert_ffn"] * reader.count("n_shared_experts", least=0),
        "moe_layers": tuple(i for i in range(dense, shape["layers"]) if i % freq == 0),
    }


@extension
def ungrouped_choice(reader: ConfigReader, _: Mapping[str, Any]) -> dict[str, Any]:
    """Take the experts of DeepSeek V2 for one group, unless it chooses by groups."""
    is_greedy = reader.text("topk_method", default="greedy") == "greedy"
    return {"expert_groups": 1, "group_top_k": 1} if is_greedy else {}


@extension
def chunks_with_rotations(reader: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add Llama 4's layers with windows, those that rotate, and those with experts."""
    layers, plain = shape["layers"], shape["no_rope_layers"]
    marked = sliding_layers(reader, layers, sliding="chunked_attention")
    mixed = reader.indices("moe_layers", below=layers)
    step = reader.count("interleave_moe_layer_step", default=1)
    rotated = tuple(index for index in range(layers) if index not in plain)
    return {
        "window_layers": rotated if marked is None else marked,
        "moe_layers": every_nth(layers, step) if mixed is None else mixed,
    }
