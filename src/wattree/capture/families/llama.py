"""Llama and its nearest relatives: Mistral, Granite, Phi-3, OLMo, SmolLM, StableLM, Cohere, …."""

from __future__ import annotations

from typing import Any

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families.common import (
    attention_biases,
    but_every_nth,
    llama_like,
    no_rope_layers,
    sliding_layers,
    sliding_window,
)
from wattree.capture.families.registry import FAMILIES


@FAMILIES.register("llama")
def llama(reader: ConfigReader) -> dict[str, Any]:
    """Read Llama 1 to 3."""
    return {
        **llama_like(reader, max_positions=2048),
        **attention_biases(reader),
        "mlp_bias": reader.flag("mlp_bias", default=False),
    }


@FAMILIES.register("mistral")
def mistral(reader: ConfigReader) -> dict[str, Any]:
    """Read Mistral: a sliding window, unless the key is null."""
    return {
        **llama_like(reader, kv_heads=8, max_positions=4096 * 32),
        "window": sliding_window(reader, default=4096),
    }


@FAMILIES.register("starcoder2")
def starcoder2(reader: ConfigReader) -> dict[str, Any]:
    """Read StarCoder 2: layer norms, biases throughout, GELU without a gate, a tied head."""
    bias = reader.flag("use_bias", default=True)
    return {
        **llama_like(
            reader, kv_heads=2, max_positions=4096, activation="gelu_pytorch_tanh", tied=True
        ),
        "gated": False,
        "norm": "layer",
        "window": sliding_window(reader, default=0),
        **dict.fromkeys(("qkv_bias", "attention_out_bias", "mlp_bias"), bias),
        "dropout": reader.share("residual_dropout", default=0.0),
        "embedding_dropout": reader.share("embedding_dropout", default=0.0),
    }


@FAMILIES.register("granite")
def granite(reader: ConfigReader) -> dict[str, Any]:
    """Read Granite: Llama with scalar multipliers, which are fused into their neighbours here."""
    return llama(reader)


@FAMILIES.register("phi3")
def phi3(reader: ConfigReader) -> dict[str, Any]:
    """Read Phi-3."""
    return {
        **llama_like(reader, max_positions=4096),
        "dropout": reader.share("resid_pdrop", default=0.0),
        "embedding_dropout": reader.share("embd_pdrop", default=0.0),
        "window": sliding_window(reader, default=0),
    }


@FAMILIES.register("olmo")
def olmo(reader: ConfigReader) -> dict[str, Any]:
    """Read OLMo: layer norms without parameters."""
    return {
        **llama_like(reader, max_positions=2048),
        "norm": "layer_plain",
        **attention_biases(reader),
    }


@FAMILIES.register("olmo2")
def olmo2(reader: ConfigReader) -> dict[str, Any]:
    """Read OLMo 2: norms after the branches, and on whole queries and keys."""
    return {
        **llama_like(reader, max_positions=2048),
        "norm_placement": "branch",
        "qk_norm": "width",
        **attention_biases(reader),
    }


@FAMILIES.register("olmo3")
def olmo3(reader: ConfigReader) -> dict[str, Any]:
    """Read OLMo 3: OLMo 2 with windows in three of four layers; YaRN is that of the others."""
    shape = olmo2(reader)
    marked = sliding_layers(reader, shape["layers"])
    return {
        **shape,
        "scaled_rotary": False,
        "window": sliding_window(reader, default=4096),
        "window_layers": but_every_nth(shape["layers"], 4) if marked is None else marked,
    }


@FAMILIES.register("exaone4")
def exaone4(reader: ConfigReader) -> dict[str, Any]:
    """Read EXAONE 4: norms after the branches, rotations in the layers with a window, if any."""
    shape = llama_like(reader, kv_heads=32, max_positions=2048)
    layers, window = shape["layers"], sliding_window(reader, default=4096)
    marked = sliding_layers(reader, layers)
    if marked is None and window:
        marked = but_every_nth(layers, reader.count("sliding_window_pattern", default=4))
    shape |= {"norm_placement": "branch", "qk_norm": "head"}
    if not window:
        return shape
    full = tuple(index for index in range(layers) if index not in (marked or ()))
    return {**shape, "window": window, "window_layers": marked, "no_rope_layers": full}


@FAMILIES.register("smollm3")
def smollm3(reader: ConfigReader) -> dict[str, Any]:
    """Read SmolLM 3: Llama without rotations in every fourth layer."""
    shape = llama_like(reader, kv_heads=4, max_positions=32768, tied=True)
    plain = no_rope_layers(reader, shape["layers"])
    shape |= {**attention_biases(reader), "no_rope_layers": plain}
    shape["mlp_bias"] = reader.flag("mlp_bias", default=False)
    if not reader.flag("use_sliding_window", default=False):
        return shape
    marked = sliding_layers(reader, shape["layers"])
    window = sliding_window(reader, default=0)
    return {**shape, "window": window, "window_layers": plain if marked is None else marked}


@FAMILIES.register("ernie4_5")
def ernie4_5(reader: ConfigReader) -> dict[str, Any]:
    """Read ERNIE 4.5 without experts: Llama with one key for all biases."""
    bias = reader.flag("use_bias", default=False)
    return {
        **llama_like(reader, kv_heads=2, head_dim=128, max_positions=131072, tied=True),
        **dict.fromkeys(("qkv_bias", "attention_out_bias", "mlp_bias"), bias),
    }


@FAMILIES.register("seed_oss")
def seed_oss(reader: ConfigReader) -> dict[str, Any]:
    """Read Seed-OSS: Llama with biases on q, k, v, and dropout after both branches."""
    return {
        **llama_like(reader, kv_heads=8, head_dim=128, max_positions=524288),
        "qkv_bias": reader.flag("attention_bias", default=True),
        "attention_out_bias": reader.flag("attention_out_bias", default=False),
        "mlp_bias": reader.flag("mlp_bias", default=False),
        "attention_dropout": reader.share("attention_dropout", default=0.1),
        "dropout": reader.share("residual_dropout", default=0.1),
    }


@FAMILIES.register("apertus")
def apertus(reader: ConfigReader) -> dict[str, Any]:
    """Read Apertus: xIELU without a gate, norms on each query and key head."""
    return {
        **llama_like(reader, max_positions=65536, activation="xielu"),
        "gated": False,
        "qk_norm": "head",
        **attention_biases(reader),
    }


@FAMILIES.register("stablelm")
def stablelm(reader: ConfigReader) -> dict[str, Any]:
    """Read StableLM: layer norms with biases, biases on q, k, v only, no head size of its own."""
    shape = llama_like(reader, kv_heads=32, max_positions=4096)
    return {
        **shape,
        "head_dim": max(1, shape["hidden"] // shape["heads"]),
        "norm": "layer",
        "qkv_bias": reader.flag("use_qkv_bias", default=False),
        "qk_norm": "heads" if reader.flag("qk_layernorm", default=False) else "none",
        "parallel": reader.flag("use_parallel_residual", default=False),
        "dropout": reader.share("hidden_dropout", default=0.0),
    }


@FAMILIES.register("nemotron")
def nemotron(reader: ConfigReader) -> dict[str, Any]:
    """Read Nemotron-4: layer norms with biases, squared ReLU without a gate."""
    return {
        **llama_like(reader, max_positions=4096, activation="relu2"),
        "gated": False,
        "norm": "layer",
        **attention_biases(reader),
        "mlp_bias": reader.flag("mlp_bias", default=False),
    }


@FAMILIES.register("cohere")
def cohere(reader: ConfigReader) -> dict[str, Any]:
    """Read Command R: one norm without bias before two parallel branches, tied head."""
    bias = reader.flag("attention_bias", default=False)
    return {
        **llama_like(reader, max_positions=8192, tied=True),
        "norm": "layer_weight",
        "parallel": True,
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "qk_norm": "heads" if reader.flag("use_qk_norm", default=False) else "none",
    }
