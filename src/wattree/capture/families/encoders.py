"""What encoders, and encoders with decoders, have that no single key says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families.registry import extension


@extension
def second_bias(_: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add the bias that the head's class holds besides that of the logits.

    The two are one if the head is tied; otherwise nothing reads the second.
    """
    untied = shape["head"] == "masked_lm" and not shape["tied_embedding"]
    return {"unread_parameters": shape["vocab"] if untied else 0}


@extension
def padding_rows(reader: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Take the rows for padding from the positions that a sample may have."""
    rows = shape["max_positions"]
    padding = reader.count("pad_token_id", default=1, least=0) + 1
    return {"position_rows": rows, "max_positions": max(1, rows - padding)}


@extension
def windows_on_both_sides(reader: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add ModernBERT's windows, and the bias of its head."""
    period = reader.count("global_attn_every_n_layers", default=3)
    is_masked = shape["head"] == "masked_lm"
    return {
        # `local_attention` counts both sides together; a mask's window is one side.
        "window": max(1, reader.count("local_attention", default=128) // 2),
        "window_layers": tuple(i for i in range(shape["layers"]) if i % period),
        "head_bias": is_masked and reader.flag("decoder_bias", default=True),
    }


@extension
def relative_attention(reader: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add the relative positions of DeBERTa, of which only the form of its version 3 is read."""
    width = reader.count("embedding_size", default=shape["hidden"])
    if width != shape["hidden"]:
        reader.fault("embedding_size", width, f"hidden_size ({shape['hidden']})")
    if convolution := reader.count("conv_kernel_size", default=0, least=0):
        reader.fault("conv_kernel_size", convolution, "0: convolutions are not read")
    if not reader.flag("relative_attention", default=False):
        return {}
    _require(reader, "share_att_key", is_met=reader.flag("share_att_key", default=False))
    _require(reader, "pos_att_type", is_met=_words(reader, "pos_att_type") == {"p2c", "c2p"})
    _require(reader, "norm_rel_ebd", is_met="layer_norm" in _words(reader, "norm_rel_ebd"))
    return {"disentangled_positions": 2 * reader.count("position_buckets", default=256)}


def _words(reader: ConfigReader, key: str) -> set[str]:
    """Return the words of a key that holds a list of them, or one text with bars between."""
    if reader.is_list(key):
        return {str(word) for word in reader.sequence(key) or ()}
    return set(reader.text(key, default="").split("|"))


def _require(reader: ConfigReader, key: str, *, is_met: bool) -> None:
    if not is_met:
        reader.problems.append(
            f"{key}: only the form of DeBERTa v3 is read: share_att_key true, pos_att_type "
            "'p2c|c2p', norm_rel_ebd 'layer_norm'"
        )


@extension
def decoder_like_encoder(_: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Give the decoder as many layers as the encoder, unless the file has a number of them."""
    return {"layers": shape["layers"] or shape["encoder_layers"]}


@extension
def named_gates(reader: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Read T5's `feed_forward_proj`: its activation, after `gated-` if there is a gate."""
    kind = shape["activation"]
    return {
        "gated": reader.flag("is_gated_act", default=kind.startswith("gated-")),
        # `T5Config` of the transformers library takes one for the other.
        "activation": "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-"),
    }


@extension
def untied_tables(_: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add the tables of an untied BART.

    The library gives both sides tables of their own and keeps the shared one unread.
    """
    tied = shape["tied_embedding"]
    return {
        "decoder_table": not tied,
        "unread_parameters": 0 if tied else shape["vocab"] * shape["hidden"],
    }
