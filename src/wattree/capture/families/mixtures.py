"""Mixtures of experts outside the Qwen family: Mixtral, DBRX, DeepSeek, GLM 4.5, Llama 4, …."""

from __future__ import annotations

from typing import Any

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families.common import (
    attention_biases,
    causal_head,
    decoder,
    every_nth,
    llama_like,
    no_rope_layers,
    routed_experts,
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


@FAMILIES.register("olmoe")
def olmoe(reader: ConfigReader) -> dict[str, Any]:
    """Read OLMoE: every layer a mixture, norms on whole queries and keys."""
    return {
        **llama_like(reader, max_positions=4096),
        **attention_biases(reader),
        "qk_norm": "width",
        "experts": reader.count("num_experts", "num_local_experts", default=64),
        "top_k": reader.count("num_experts_per_tok", default=8),
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


@FAMILIES.register("minimax_m2")
def minimax_m2(reader: ConfigReader) -> dict[str, Any]:
    """Read MiniMax M2: norms on whole queries and keys, every layer a mixture."""
    return {
        **llama_like(reader, kv_heads=8, head_dim=128, max_positions=196608),
        "qk_norm": "width",
        "experts": reader.count("num_local_experts", "num_experts"),
        "top_k": reader.count("num_experts_per_tok"),
    }


@FAMILIES.register("hunyuan_v1_moe")
def hunyuan_v1_moe(reader: ConfigReader) -> dict[str, Any]:
    """Read HunYuan A13B: norms on rotated heads, a shared expert as wide as the others."""
    shape = llama_like(reader, max_positions=2048)
    each = (reader.indices("moe_topk") or ()) if reader.is_list("moe_topk") else ()
    if each:
        reader.require_length("moe_topk", each, shape["layers"])
    if len(chosen := set(each)) > 1:
        reader.fault("moe_topk", sorted(chosen), "one number for all layers")
    return {
        **shape,
        **attention_biases(reader),
        "qk_norm": "head",
        "experts": reader.count("num_experts", "num_local_experts"),
        "top_k": max(chosen) if chosen else reader.count("moe_topk", "num_experts_per_tok"),
        "shared_ffn": shape["ffn"],
    }


@FAMILIES.register("ernie4_5_moe")
def ernie4_5_moe(reader: ConfigReader) -> dict[str, Any]:
    """Read ERNIE 4.5 with experts. The biases that choose them, which no gradient trains, count."""
    shape = llama_like(reader, kv_heads=4, max_positions=131072, tied=True)
    bias = reader.flag("use_bias", default=False)
    first = reader.count("moe_layer_start_index", default=1, least=0)
    end = reader.count("moe_layer_end_index", default=-1, least=-1)
    below = shape["layers"] if end < 0 else min(end + 1, shape["layers"])
    mixed = every_nth(below, reader.count("moe_layer_interval", default=1), first)
    experts = reader.count("moe_num_experts", "num_experts")
    expert_ffn = reader.count("moe_intermediate_size")
    return {
        **shape,
        **dict.fromkeys(("qkv_bias", "attention_out_bias", "mlp_bias", "head_bias"), bias),
        "experts": experts,
        "top_k": reader.count("moe_k", "num_experts_per_tok"),
        "expert_ffn": expert_ffn,
        "shared_ffn": expert_ffn * reader.count("moe_num_shared_experts", default=2, least=0),
        "moe_layers": mixed,
        "unread_parameters": experts * len(mixed),
    }


@FAMILIES.register("glm4_moe")
def glm4_moe(reader: ConfigReader) -> dict[str, Any]:
    """Read GLM 4.5 to 4.7. Multi-token-prediction layers are not part of them."""
    shape = llama_like(reader, kv_heads=8, max_positions=131072)
    return {
        **shape,
        "qkv_bias": reader.flag("attention_bias", default=False),
        "qk_norm": "head" if reader.flag("use_qk_norm", default=False) else "none",
        **routed_experts(reader, shape["layers"]),
    }


@FAMILIES.register("llama4_text")
def llama4_text(reader: ConfigReader) -> dict[str, Any]:
    """Read the language model of Llama 4: windows where it rotates, a shared expert.

    A chunk of attention is a window here, which sees more of sequences longer than one chunk.
    """
    shape = llama_like(reader, kv_heads=8, head_dim=128, max_positions=4096 * 32)
    layers, expert_ffn = shape["layers"], shape["ffn"]
    plain = no_rope_layers(reader, layers)
    marked = sliding_layers(reader, layers, sliding="chunked_attention")
    mixed = reader.indices("moe_layers", below=layers)
    step = reader.count("interleave_moe_layer_step", default=1)
    rotated = tuple(index for index in range(layers) if index not in plain)
    return {
        **shape,
        **attention_biases(reader),
        "ffn": reader.count("intermediate_size_mlp"),
        "no_rope_layers": plain,
        "window": sliding_window(reader, default=8192, key="attention_chunk_size"),
        "window_layers": rotated if marked is None else marked,
        "qk_norm": "plain" if reader.flag("use_qk_norm", default=True) else "none",
        "experts": reader.count("num_local_experts"),
        "top_k": reader.count("num_experts_per_tok"),
        "expert_ffn": expert_ffn,
        "shared_ffn": expert_ffn,
        "moe_layers": every_nth(layers, step) if mixed is None else mixed,
    }


@FAMILIES.register("deepseek_v3")
def deepseek_v3(reader: ConfigReader) -> dict[str, Any]:
    """Read DeepSeek V3 and R1, and Kimi K2. Multi-token-prediction layers are not part of them."""
    return _deepseek(reader, max_positions=4096, groups=(8, 4))


@FAMILIES.register("deepseek_v2")
def deepseek_v2(reader: ConfigReader) -> dict[str, Any]:
    """Read DeepSeek V2 and V2-Lite (which does not compress queries)."""
    shape = _deepseek(reader, max_positions=2048, groups=(1, 1))
    if reader.text("topk_method", default="greedy") == "greedy":
        shape |= {"expert_groups": 1, "group_top_k": 1}
    # Version 3 has no such key.
    return {**shape, "mlp_bias": reader.flag("mlp_bias", default=False)}


def _deepseek(
    reader: ConfigReader, *, max_positions: int, groups: tuple[int, int]
) -> dict[str, Any]:
    layers = reader.layers("num_hidden_layers")
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
        # A null means that queries are not compressed.
        "q_lora_rank": reader.count("q_lora_rank", default=1536, null=0),
        "kv_lora_rank": reader.count("kv_lora_rank"),
        "qk_nope_head_dim": reader.count("qk_nope_head_dim"),
        "qk_rope_head_dim": reader.count("qk_rope_head_dim"),
        "v_head_dim": reader.count("v_head_dim"),
        **routed_experts(reader, layers, groups=groups),
        "tied_embedding": reader.flag("tie_word_embeddings", default=False),
        "head": causal_head(reader),
    }
