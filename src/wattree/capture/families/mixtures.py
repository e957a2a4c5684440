"""Mixtures of experts outside the Qwen family: Mixtral, DeepSeek V2 and V3, gpt-oss."""

from __future__ import annotations

from typing import Any

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families.common import (
    causal_head,
    llama_like,
    sliding_layers,
    sliding_window,
)
from wattree.capture.families.registry import FAMILIES


@FAMILIES.register("mixtral")
def mixtral(reader: ConfigReader) -> dict[str, Any]:
    """Read Mixtral: every layer a mixture."""
    return {
        **llama_like(
            reader,
            vocab=32000,
            hidden=4096,
            ffn=14336,
            layers=32,
            n_heads=32,
            kv_heads=8,
            max_positions=4096 * 32,
        ),
        "window": sliding_window(reader, default=0),
        "experts": reader.count("num_local_experts", default=8),
        "top_k": reader.count("num_experts_per_tok", default=2),
    }


@FAMILIES.register("gpt_oss")
def gpt_oss(reader: ConfigReader) -> dict[str, Any]:
    """Read gpt-oss: attention sinks, biases on experts and router, a window in turn."""
    shape = llama_like(
        reader,
        vocab=201088,
        hidden=2880,
        ffn=2880,
        layers=36,
        n_heads=64,
        kv_heads=8,
        head_dim=64,
        max_positions=131072,
    )
    bias = reader.flag("attention_bias", default=True)
    marked = sliding_layers(reader, shape["layers"])
    return {
        **shape,
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "attention_sinks": True,
        "window": sliding_window(reader, default=128),
        "window_layers": tuple(range(0, shape["layers"], 2)) if marked is None else marked,
        "experts": reader.count("num_local_experts", "num_experts", default=128),
        "top_k": reader.count("num_experts_per_tok", "experts_per_token", default=4),
        "expert_bias": True,
        "router_bias": True,
    }


@FAMILIES.register("deepseek_v3")
def deepseek_v3(reader: ConfigReader) -> dict[str, Any]:
    """Read DeepSeek V3 and R1. The multi-token-prediction layers are not part of the model."""
    return _deepseek(
        reader,
        {
            "vocab_size": 129280,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "n_shared_experts": 1,
            "n_routed_experts": 256,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "qk_nope_head_dim": 128,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
            "max_position_embeddings": 4096,
        },
    )


@FAMILIES.register("deepseek_v2")
def deepseek_v2(reader: ConfigReader) -> dict[str, Any]:
    """Read DeepSeek V2 and V2-Lite (which does not compress queries)."""
    shape = _deepseek(
        reader,
        {
            "vocab_size": 102400,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "moe_intermediate_size": 1407,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "n_shared_experts": 2,
            "n_routed_experts": 64,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "qk_nope_head_dim": 128,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 0,
            "max_position_embeddings": 2048,
        },
    )
    # Version 3 has no such key.
    return {**shape, "mlp_bias": reader.flag("mlp_bias", default=False)}


def _deepseek(reader: ConfigReader, usual: dict[str, int]) -> dict[str, Any]:
    def count(key: str, *, least: int = 1) -> int:
        return reader.count(key, default=usual[key], least=least)

    layers = reader.layers("num_hidden_layers", default=usual["num_hidden_layers"])
    expert_ffn = count("moe_intermediate_size")
    dense, freq = count("first_k_dense_replace", least=0), reader.count("moe_layer_freq", default=1)
    bias = reader.flag("attention_bias", default=False)
    # An explicit null means that queries are not compressed; a missing key means the default.
    compressed = reader.has("q_lora_rank") or not reader.mentions("q_lora_rank")
    return {
        "layers": layers,
        "hidden": count("hidden_size"),
        "heads": count("num_attention_heads"),
        "vocab": count("vocab_size"),
        "ffn": count("intermediate_size"),
        "gated": True,
        "activation": reader.text("hidden_act", default="silu"),
        "norm": "rms",
        "max_positions": count("max_position_embeddings"),
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "attention_dropout": reader.share("attention_dropout", default=0.0),
        "q_lora_rank": count("q_lora_rank") if compressed else 0,
        "kv_lora_rank": count("kv_lora_rank"),
        "qk_nope_head_dim": count("qk_nope_head_dim"),
        "qk_rope_head_dim": count("qk_rope_head_dim"),
        "v_head_dim": count("v_head_dim"),
        "experts": count("n_routed_experts"),
        "top_k": count("num_experts_per_tok"),
        "expert_ffn": expert_ffn,
        "shared_ffn": expert_ffn * count("n_shared_experts", least=0),
        "moe_layers": tuple(i for i in range(dense, layers) if i % freq == 0),
        "tied_embedding": reader.flag("tie_word_embeddings", default=False),
        "head": causal_head(reader),
    }
