"""Encoder-decoder language models: T5, mT5, BART."""

from __future__ import annotations

from typing import Any

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families.common import training_class
from wattree.capture.families.registry import FAMILIES


@FAMILIES.register("t5")
def t5(reader: ConfigReader) -> dict[str, Any]:
    """Read T5, T5 v1.1 and Flan-T5."""
    return _t5(reader, feed_forward="relu", tied=True)


@FAMILIES.register("mt5")
def mt5(reader: ConfigReader) -> dict[str, Any]:
    """Read mT5."""
    return _t5(reader, feed_forward="gated-gelu", tied=False)


def _t5(reader: ConfigReader, *, feed_forward: str, tied: bool) -> dict[str, Any]:
    layers = reader.layers("num_layers")
    kind = reader.text("feed_forward_proj", default=feed_forward)
    dropout = reader.share("dropout_rate", default=0.1)
    head = _head(reader)
    return {
        "encoder_layers": layers,
        "layers": reader.layers("num_decoder_layers", default=layers),
        "hidden": reader.count("d_model"),
        "heads": reader.count("num_heads"),
        "head_dim": reader.count("d_kv"),
        "vocab": reader.count("vocab_size"),
        "ffn": reader.count("d_ff"),
        "gated": reader.flag("is_gated_act", default=kind.startswith("gated-")),
        # `T5Config` of the transformers library takes one for the other.
        "activation": "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-"),
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
    positions = reader.count("max_position_embeddings")
    width = reader.count("d_model")
    query = reader.count("decoder_attention_heads")
    encoder_query = reader.count("encoder_attention_heads")
    reader.require_divisor("decoder_attention_heads", query, "d_model", width)
    reader.require_divisor("encoder_attention_heads", encoder_query, "d_model", width)
    dropout = reader.share("dropout", default=0.1)
    head = _head(reader)
    vocab = reader.count("vocab_size")
    tied = reader.flag("tie_word_embeddings", default=True)
    return {
        "encoder_layers": reader.layers("encoder_layers"),
        "layers": reader.layers("decoder_layers"),
        "hidden": width,
        "heads": query,
        "encoder_heads": encoder_query,
        "vocab": vocab,
        "ffn": reader.count("decoder_ffn_dim"),
        "encoder_ffn": reader.count("encoder_ffn_dim"),
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
        "tied_embedding": tied and head != "none",
        # Untied, the library gives both sides tables of their own and keeps the shared one unread.
        "decoder_table": not tied,
        "unread_parameters": 0 if tied else vocab * width,
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
