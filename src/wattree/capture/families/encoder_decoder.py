"""Encoder-decoder language models: T5, mT5, BART."""

from __future__ import annotations

from typing import Any

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families.common import training_class
from wattree.capture.families.registry import FAMILIES


@FAMILIES.register("t5")
def t5(reader: ConfigReader) -> dict[str, Any]:
    """Read T5, T5 v1.1 and Flan-T5."""
    return _t5(reader, feed_forward="relu", tied=True, vocab=32128)


@FAMILIES.register("mt5")
def mt5(reader: ConfigReader) -> dict[str, Any]:
    """Read mT5."""
    return _t5(reader, feed_forward="gated-gelu", tied=False, vocab=250112)


def _t5(reader: ConfigReader, *, feed_forward: str, tied: bool, vocab: int) -> dict[str, Any]:
    layers = reader.layers("num_layers", default=6 if tied else 8)
    kind = reader.text("feed_forward_proj", default=feed_forward)
    dropout = reader.share("dropout_rate", default=0.1)
    head = _head(reader)
    return {
        "encoder_layers": layers,
        "layers": reader.layers("num_decoder_layers", default=layers),
        "hidden": reader.count("d_model", default=512),
        "heads": reader.count("num_heads", default=8 if tied else 6),
        "head_dim": reader.count("d_kv", default=64),
        "vocab": reader.count("vocab_size", default=vocab),
        "ffn": reader.count("d_ff", default=2048 if tied else 1024),
        "gated": kind.startswith("gated-"),
        "activation": kind.removeprefix("gated-"),
        "norm": "rms",
        "positions": "relative",
        "relative_buckets": reader.count("relative_attention_num_buckets", default=32),
        "dropout": dropout,
        "embedding_dropout": dropout,
        "attention_dropout": dropout,
        "tied_embedding": reader.flag("tie_word_embeddings", default=tied) and head != "none",
        "head": head,
    }


@FAMILIES.register("bart")
def bart(reader: ConfigReader) -> dict[str, Any]:
    """Read BART: post-norm, learned positions on both sides, all token tables shared."""
    positions = reader.count("max_position_embeddings", default=1024)
    width = reader.count("d_model", default=1024)
    query = reader.count("decoder_attention_heads", default=16)
    encoder_query = reader.count("encoder_attention_heads", default=16)
    reader.require_divisor("decoder_attention_heads", query, "d_model", width)
    reader.require_divisor("encoder_attention_heads", encoder_query, "d_model", width)
    dropout = reader.share("dropout", default=0.1)
    head = _head(reader)
    return {
        "encoder_layers": reader.layers("encoder_layers", default=12),
        "layers": reader.layers("decoder_layers", default=12),
        "hidden": width,
        "heads": query,
        "encoder_heads": encoder_query,
        "vocab": reader.count("vocab_size", default=50265),
        "ffn": reader.count("decoder_ffn_dim", default=4096),
        "encoder_ffn": reader.count("encoder_ffn_dim", default=4096),
        "activation": reader.text("activation_function", default="gelu"),
        "norm": "layer",
        "norm_placement": "post",
        "final_norm": False,
        "qkv_bias": True,
        "attention_out_bias": True,
        "mlp_bias": True,
        "positions": "learned",
        "max_positions": positions,
        "position_rows": positions + 2,  # the library offsets positions by the padding rows
        "embedding_norm": True,
        "dropout": dropout,
        "embedding_dropout": dropout,
        "attention_dropout": reader.share("attention_dropout", default=0.0),
        "tied_embedding": head != "none",
        "head": head,
    }


def _head(reader: ConfigReader) -> str:
    name = training_class(reader)
    if name.endswith(("ForConditionalGeneration", "WithLMHeadModel")):
        return "language_model"
    if not name or name.endswith("Model"):
        return "none"
    reader.fault("architectures", name, "a class ending in ForConditionalGeneration or Model")
    return "none"
