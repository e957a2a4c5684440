"""Mixtures of experts outside the Qwen family: Mixtral, DBRX, DeepSeek V2 and V3, gpt-oss."""

from __future__ import annotations

from typing import Any

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families.common import (
    attention_biases,
    causal_head,
    decoder,
    llama_like,
    scaled_rotations,
    sliding_layers,
    sliding_window,
)
from wattree.capture.families.registry import FAMILIES


@FAMILIES.register("mixtral")
def mixtral(reader: ConfigReader) -> dict[str, Any]:
    """Read Mixtral: every layer a mixture."""
    return {
        **llama_like(reader, kv_heads=8, max_positions=4096 * 32),
        "window": sliding_window(reader, default=0),
        "experts": reader.count("num_local_experts"),
        "top_k": reader.count("num_experts_per_tok"),
    }


@FAMILIES.register("dbrx")
def dbrx(reader: ConfigReader) -> dict[str, Any]:
    """Read DBRX: every layer a mixture, norms of a weight alone, grouped queries, no biases.

    The limit on queries, keys and values (`clip_qkv`) is no operator here.
    """
    shape = decoder(
        reader,
        hidden=("d_model", "hidden_size"),
        heads=("n_heads", "num_attention_heads"),
        layers=("n_layers", "num_hidden_layers"),
        tied=False,
    )
    attention, experts = reader.section("attn_config"), reader.section("ffn_config")
    kv = attention.count("kv_n_heads", default=1)
    attention.require_divisor("kv_n_heads", kv, "n_heads", shape["heads"])
    inner = experts.count("ffn_hidden_size")
    return {
        **shape,
        "kv_heads": kv,
        "ffn": inner,
        "gated": True,
        "activation": experts.section("ffn_act_fn").text("name", default="silu"),
        "norm": "layer_weight",
        "positions": "rotary",
        "max_positions": reader.count("max_seq_len", "max_position_embeddings", default=2048),
        "experts": experts.count("moe_num_experts"),
        "top_k": experts.count("moe_top_k"),
        "dropout": reader.share("resid_pdrop", default=0.0),
        "embedding_dropout": reader.share("emb_pdrop", default=0.0),
        "attention_dropout": attention.share("attn_pdrop", default=0.0),
    }


@FAMILIES.register("gpt_oss")
def gpt_oss(reader: ConfigReader) -> dict[str, Any]:
    """Read gpt-oss: attention sinks, biases on experts and router, a window in turn, YaRN.

    Gates and what they multiply are clamped.
    """
    shape = llama_like(reader, kv_heads=8, head_dim=64, max_positions=131072)
    marked = sliding_layers(reader, shape["layers"])
    return {
        **shape,
        **attention_biases(reader, default=True),
        "activation": f"{shape['activation']}_clamped",
        "scaled_rotary": scaled_rotations(reader, factor=32.0),
        "attention_sinks": True,
        "window": sliding_window(reader, default=128),
        "window_layers": tuple(range(0, shape["layers"], 2)) if marked is None else marked,
        "experts": reader.count("num_local_experts", "num_experts"),
        "top_k": reader.count("num_experts_per_tok", "experts_per_token"),
        "expert_bias": True,
        "router_bias": True,
    }


@FAMILIES.register("deepseek_v3")
def deepseek_v3(reader: ConfigReader) -> dict[str, Any]:
    """Read DeepSeek V3 and R1, and Kimi K2. Multi-token-prediction layers are not part of them."""
    return _deepseek(reader, max_positions=4096)


@FAMILIES.register("deepseek_v2")
def deepseek_v2(reader: ConfigReader) -> dict[str, Any]:
    """Read DeepSeek V2 and V2-Lite (which does not compress queries)."""
    shape = _deepseek(reader, max_positions=2048)
    # Version 3 has no such key.
    return {**shape, "mlp_bias": reader.flag("mlp_bias", default=False)}


def _deepseek(reader: ConfigReader, *, max_positions: int) -> dict[str, Any]:
    layers = reader.layers("num_hidden_layers")
    expert_ffn = reader.count("moe_intermediate_size")
    dense = reader.count("first_k_dense_replace", least=0)
    freq = reader.count("moe_layer_freq", default=1)
    # An explicit null means that queries are not compressed; a missing key means the default.
    compressed = reader.has("q_lora_rank") or not reader.mentions("q_lora_rank")
    return {
        "layers": layers,
        "hidden": reader.count("hidden_size"),
        "heads": reader.count("num_attention_heads"),
        "vocab": reader.count("vocab_size"),
        "ffn": reader.count("intermediate_size"),
        "gated": True,
        "activation": reader.text("hidden_act", default="silu"),
        "norm": "rms",
        "max_positions": reader.count("max_position_embeddings", default=max_positions),
        **attention_biases(reader),
        "attention_dropout": reader.share("attention_dropout", default=0.0),
        "q_lora_rank": reader.count("q_lora_rank", default=1536) if compressed else 0,
        "kv_lora_rank": reader.count("kv_lora_rank"),
        "qk_nope_head_dim": reader.count("qk_nope_head_dim"),
        "qk_rope_head_dim": reader.count("qk_rope_head_dim"),
        "v_head_dim": reader.count("v_head_dim"),
        "experts": reader.count("n_routed_experts"),
        "top_k": reader.count("num_experts_per_tok"),
        "expert_ffn": expert_ffn,
        "shared_ffn": expert_ffn * reader.count("n_shared_experts", least=0),
        "moe_layers": tuple(i for i in range(dense, layers) if i % freq == 0),
        "tied_embedding": reader.flag("tie_word_embeddings", default=False),
        "head": causal_head(reader),
    }
