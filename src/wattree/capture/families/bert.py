"""Encoder-only models: BERT, RoBERTa, XLM-R, ELECTRA, ModernBERT, DeBERTa v2 and v3."""

from __future__ import annotations

from typing import Any, Final

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families.common import no_cross_attention, training_class
from wattree.capture.families.registry import FAMILIES

#: Ending of the class name → head. The base model is what a file without `architectures` means.
_BERT_HEADS: Final[dict[str, dict[str, Any]]] = {
    "ForMaskedLM": {"head": "masked_lm", "head_bias": True},
    "ForPreTraining": {"head": "masked_lm", "head_bias": True, "next_sentence": True},
    # Before "Model", which it ends in: BERT as a decoder.
    "LMHeadModel": {"head": "masked_lm", "head_bias": True, "causal": True},
    "Model": {"head": "pooler", "tied_embedding": False},
}
_ELECTRA_HEADS: Final[dict[str, dict[str, Any]]] = {
    "ForPreTraining": {"head": "discriminator", "tied_embedding": False},
    "ForMaskedLM": {"head": "masked_lm", "head_bias": True},
    "Model": {"head": "none", "tied_embedding": False},
}
_PLAIN_HEADS: Final[dict[str, dict[str, Any]]] = {
    "ForMaskedLM": {"head": "masked_lm", "head_bias": True},
    "Model": {"head": "none", "tied_embedding": False},
}


def _head(reader: ConfigReader, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    name = training_class(reader) or "Model"
    for ending, head in known.items():
        if name.endswith(ending):
            return head
    reader.fault("architectures", name, f"a class ending in {', '.join(known)}")
    return known["Model"]


def _encoder(
    reader: ConfigReader,
    *,
    token_types: int = 2,
) -> dict[str, Any]:
    """Return the common keys of BERT-like files, given the library's default of token types."""
    no_cross_attention(reader)
    width = reader.count("hidden_size")
    query = reader.count("num_attention_heads")
    reader.require_divisor("num_attention_heads", query, "hidden_size", width)
    dropout = reader.share("hidden_dropout_prob", default=0.1)
    return {
        "layers": reader.layers("num_hidden_layers"),
        "hidden": width,
        "heads": query,
        "vocab": reader.count("vocab_size"),
        "ffn": reader.count("intermediate_size"),
        "activation": reader.text("hidden_act", default="gelu"),
        "norm": "layer",
        "norm_placement": "post",
        "final_norm": False,
        "causal": False,
        "qkv_bias": True,
        "attention_out_bias": True,
        "mlp_bias": True,
        "positions": "learned",
        "max_positions": reader.count("max_position_embeddings"),
        "token_types": reader.count("type_vocab_size", default=token_types, least=0),
        "embedding_norm": True,
        "dropout": dropout,
        "embedding_dropout": dropout,
        "attention_dropout": reader.share("attention_probs_dropout_prob", default=0.1),
        "tied_embedding": reader.flag("tie_word_embeddings", default=True),
    }


@FAMILIES.register("bert")
def bert(reader: ConfigReader) -> dict[str, Any]:
    """Read BERT."""
    return _with_second_bias({**_encoder(reader), **_head(reader, _BERT_HEADS)})


def _with_second_bias(shape: dict[str, Any]) -> dict[str, Any]:
    """Return the shape with the bias that the head's class holds besides that of the logits.

    The two are one if the head is tied; otherwise nothing reads the second.
    """
    untied = shape["head"] == "masked_lm" and not shape["tied_embedding"]
    return {**shape, "unread_parameters": shape["vocab"] if untied else 0}


@FAMILIES.register("xlm-roberta")
@FAMILIES.register("roberta")
def roberta(reader: ConfigReader) -> dict[str, Any]:
    """Read RoBERTa and XLM-R: the first rows of the position table are for padding."""
    shape = _encoder(reader)
    rows = shape["max_positions"]
    padding = reader.count("pad_token_id", default=1, least=0) + 1
    return _with_second_bias(
        {
            **shape,
            "position_rows": rows,
            "max_positions": max(1, rows - padding),
            **_head(reader, {key: _BERT_HEADS[key] for key in ("ForMaskedLM", "Model")}),
        }
    )


@FAMILIES.register("electra")
def electra(reader: ConfigReader) -> dict[str, Any]:
    """Read ELECTRA: a narrow embedding, discriminator or generator."""
    return {
        **_encoder(reader),
        "embedding_width": reader.count("embedding_size"),
        "embedding_bias": True,
        **_head(reader, _ELECTRA_HEADS),
    }


@FAMILIES.register("modernbert")
def modernbert(reader: ConfigReader) -> dict[str, Any]:
    """Read ModernBERT: pre-norm, rotary, gated, two layers of three with a local window."""
    shape = _encoder(reader)
    layers = shape["layers"]
    period = reader.count("global_attn_every_n_layers", default=3)
    bias = reader.flag("attention_bias", default=False)
    head = _head(reader, _PLAIN_HEADS)
    return {
        **shape,
        "activation": reader.text("hidden_activation", default="gelu"),
        "gated": True,
        "norm": "layer" if reader.flag("norm_bias", default=False) else "layer_weight",
        "norm_placement": "pre",
        "first_layer_norm": False,
        "final_norm": True,
        "positions": "rotary",
        "token_types": 0,
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "mlp_bias": reader.flag("mlp_bias", default=False),
        # `local_attention` counts both sides together; a mask's window is one side.
        "window": max(1, reader.count("local_attention", default=128) // 2),
        "window_layers": tuple(i for i in range(layers) if i % period),
        "dropout": reader.share("mlp_dropout", default=0.0),
        "embedding_dropout": reader.share("embedding_dropout", default=0.0),
        "attention_dropout": reader.share("attention_dropout", default=0.0),
        **head,
        "transform_bias": reader.flag("classifier_bias", default=False),
        "head_bias": head["head"] == "masked_lm" and reader.flag("decoder_bias", default=True),
    }


@FAMILIES.register("deberta-v2")
def deberta_v2(reader: ConfigReader) -> dict[str, Any]:
    """Read DeBERTa v2 and v3 with shared projections of disentangled positions."""
    shape = _encoder(reader, token_types=0)
    width = reader.count("embedding_size", default=shape["hidden"])
    if width != shape["hidden"]:
        reader.fault("embedding_size", width, f"hidden_size ({shape['hidden']})")
    if convolution := reader.count("conv_kernel_size", default=0, least=0):
        reader.fault("conv_kernel_size", convolution, "0: convolutions are not read")
    if not reader.flag("position_biased_input", default=True):
        shape["positions"] = "none"
    if reader.flag("relative_attention", default=False):
        _require(reader, "share_att_key", is_met=reader.flag("share_att_key", default=False))
        _require(reader, "pos_att_type", is_met=_words(reader, "pos_att_type") == {"p2c", "c2p"})
        _require(reader, "norm_rel_ebd", is_met="layer_norm" in _words(reader, "norm_rel_ebd"))
        buckets = reader.count("position_buckets", default=256)
        shape["disentangled_positions"] = 2 * buckets
    return {**shape, **_head(reader, {"Model": _PLAIN_HEADS["Model"]})}


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
