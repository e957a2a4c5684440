"""Qwen 2, 2.5 and 3, dense and mixture of experts."""

from __future__ import annotations

from typing import Any

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families.common import (
    attention_biases,
    every_nth,
    llama_like,
    sliding_layers,
)
from wattree.capture.families.registry import FAMILIES


def _window(reader: ConfigReader, layers: int) -> dict[str, Any]:
    """Return the sliding window, which `use_sliding_window` turns on for the upper layers."""
    if not reader.flag("use_sliding_window", default=False):
        return {}
    marked = sliding_layers(reader, layers)
    if marked is None:
        first = reader.count("max_window_layers", default=28, least=0)
        marked = tuple(range(first, layers))
    return {"window": reader.count("sliding_window", default=4096), "window_layers": marked}


@FAMILIES.register("qwen2")
def qwen2(reader: ConfigReader) -> dict[str, Any]:
    """Read Qwen 2 and 2.5: biases on q, k, v, which no key announces."""
    shape = llama_like(reader, kv_heads=32, max_positions=32768)
    return {**shape, "qkv_bias": True, **_window(reader, shape["layers"])}


@FAMILIES.register("qwen3")
def qwen3(reader: ConfigReader) -> dict[str, Any]:
    """Read Qwen 3: norms on each query and key head."""
    shape = llama_like(reader, kv_heads=32, head_dim=128, max_positions=32768)
    return {
        **shape,
        "qk_norm": "head",
        **attention_biases(reader),
        **_window(reader, shape["layers"]),
    }


def _experts(reader: ConfigReader, layers: int) -> dict[str, Any]:
    """Return the layers with mixtures of experts, and their sizes."""
    step = reader.count("decoder_sparse_step", default=1)
    dense = set(reader.indices("mlp_only_layers", below=layers) or ())
    return {
        "experts": reader.count("num_experts", "num_local_experts"),
        "top_k": reader.count("num_experts_per_tok"),
        "expert_ffn": reader.count("moe_intermediate_size"),
        "moe_layers": tuple(i for i in every_nth(layers, step) if i not in dense),
    }


@FAMILIES.register("qwen2_moe")
def qwen2_moe(reader: ConfigReader) -> dict[str, Any]:
    """Read Qwen 1.5/2 MoE: routed experts and a gated shared one."""
    shape = llama_like(reader, kv_heads=16, max_positions=32768)
    return {
        **shape,
        "qkv_bias": reader.flag("qkv_bias", default=True),
        **_window(reader, shape["layers"]),
        **_experts(reader, shape["layers"]),
        "shared_ffn": reader.count("shared_expert_intermediate_size"),
        "shared_gate": True,
    }


@FAMILIES.register("qwen3_moe")
def qwen3_moe(reader: ConfigReader) -> dict[str, Any]:
    """Read Qwen 3 MoE: norms on query and key heads, no shared expert."""
    shape = llama_like(reader, kv_heads=4, max_positions=32768)
    return {
        **shape,
        "qk_norm": "head",
        **attention_biases(reader),
        **_window(reader, shape["layers"]),
        **_experts(reader, shape["layers"]),
    }
