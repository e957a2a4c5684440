"""Llama and its nearest relatives: Mistral, Granite, Phi-3, OLMo, StableLM, Nemotron, Cohere."""

from __future__ import annotations

from typing import Any

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families.common import attention_biases, llama_like, sliding_window
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


@FAMILIES.register("stablelm")
def stablelm(reader: ConfigReader) -> dict[str, Any]:
    """Read StableLM: layer norms with biases, biases on q, k, v only, no head size of its own."""
    shape = llama_like(reader, kv_heads=32, max_positions=4096)
    return {
        **shape,
        "head_dim": max(1, shape["hidden"] // shape["heads"]),
        "norm": "layer",
        "qkv_bias": reader.flag("use_qkv_bias", default=False),
        "qk_norm": "width" if reader.flag("qk_layernorm", default=False) else "none",
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
        "qk_norm": "width" if reader.flag("use_qk_norm", default=False) else "none",
    }
