"""GPT-2 and kin: GPT-Neo, GPT-J, GPT-NeoX, StarCoder, OPT, BLOOM, Falcon, MPT, Phi."""

from __future__ import annotations

from typing import Any

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families.common import attention_biases, decoder, heads, no_cross_attention
from wattree.capture.families.registry import FAMILIES


def _gpt2_names(
    reader: ConfigReader, *, positions: int | None = None, tied: bool = True
) -> dict[str, Any]:
    """Return the keys of files with GPT-2's names.

    Args:
        reader: The file.
        positions: Longest sequence where the file does not say; None where it must.
        tied: Whether the head is tied where the file does not say.
    """
    no_cross_attention(reader)
    shape = decoder(
        reader,
        hidden=("n_embd", "hidden_size"),
        heads=("n_head", "num_attention_heads"),
        layers=("n_layer", "num_hidden_layers"),
        tied=tied,
    )
    return {
        **shape,
        "ffn": reader.count("n_inner", default=4 * shape["hidden"]),
        "max_positions": reader.count("n_positions", "max_position_embeddings", default=positions),
        "norm": "layer",
        "dropout": reader.share("resid_pdrop", default=0.1),
        "embedding_dropout": reader.share("embd_pdrop", default=0.1),
        "attention_dropout": reader.share("attn_pdrop", default=0.1),
    }


_ALL_BIASES = {"qkv_bias": True, "attention_out_bias": True, "mlp_bias": True}


@FAMILIES.register("gpt2")
def gpt2(reader: ConfigReader) -> dict[str, Any]:
    """Read GPT-2: learned positions, biases everywhere, tied head."""
    return {
        **_gpt2_names(reader),
        **_ALL_BIASES,
        "activation": reader.text("activation_function", default="gelu_new"),
        "positions": "learned",
    }


@FAMILIES.register("gpt_bigcode")
def gpt_bigcode(reader: ConfigReader) -> dict[str, Any]:
    """Read StarCoder: GPT-2 with one key/value head by default."""
    shape = gpt2(reader)
    shape["activation"] = reader.text("activation_function", default="gelu_pytorch_tanh")
    shape["kv_heads"] = 1 if reader.flag("multi_query", default=True) else shape["heads"]
    return shape


@FAMILIES.register("gptj")
def gptj(reader: ConfigReader) -> dict[str, Any]:
    """Read GPT-J: parallel branches after one norm, head with a bias."""
    return {
        **_gpt2_names(reader, positions=2048, tied=False),
        "dropout": reader.share("resid_pdrop", default=0.0),
        "embedding_dropout": reader.share("embd_pdrop", default=0.0),
        "attention_dropout": reader.share("attn_pdrop", default=0.0),
        "activation": reader.text("activation_function", default="gelu_new"),
        "parallel": True,
        "mlp_bias": True,
        "head_bias": True,
    }


@FAMILIES.register("gpt_neo")
def gpt_neo(reader: ConfigReader) -> dict[str, Any]:
    """Read GPT-Neo: global and local attention in turn, no biases on q, k, v."""
    shape = decoder(reader, heads=("num_heads",), layers=("num_layers",))
    return {
        **shape,
        "ffn": reader.count("intermediate_size", default=4 * shape["hidden"]),
        "activation": reader.text("activation_function", default="gelu_new"),
        "attention_out_bias": True,
        "mlp_bias": True,
        "positions": "learned",
        "max_positions": reader.count("max_position_embeddings"),
        "window": reader.count("window_size", default=256),
        "window_layers": _local_layers(reader, shape["layers"]),
        "dropout": reader.share("resid_dropout", default=0.0),
        "embedding_dropout": reader.share("embed_dropout", default=0.0),
        "attention_dropout": reader.share("attention_dropout", default=0.0),
    }


def _local_layers(reader: ConfigReader, layers: int) -> tuple[int, ...]:
    """Return the layers that `attention_types`, `[[[kind, …], repeats], …]`, makes local."""
    groups = reader.sequence("attention_types")
    if groups is None:
        return tuple(range(1, layers, 2))
    kinds: list[str] = []
    for group in groups:
        match group:
            case [[*names], int(repeats)] if 0 < repeats * len(names) <= layers:
                kinds += [str(name) for name in names] * repeats
            case _:
                reader.fault("attention_types", group, "[[global or local, …], repeats]")
                return ()
    if unknown := set(kinds) - {"global", "local"}:
        reader.fault("attention_types", min(unknown), "global or local")
    if len(kinds) != layers:
        reader.fault("attention_types", f"{len(kinds)} layers", f"{layers}, as num_layers states")
    return tuple(index for index, kind in enumerate(kinds) if kind == "local")


@FAMILIES.register("gpt_neox")
def gpt_neox(reader: ConfigReader) -> dict[str, Any]:
    """Read GPT-NeoX and Pythia: parallel branches, each after its own norm."""
    dropout = reader.share("hidden_dropout", "hidden_dropout_prob", default=0.0)
    return {
        **decoder(reader, tied=False),
        "ffn": reader.count("intermediate_size"),
        "activation": reader.text("hidden_act", default="gelu"),
        "parallel": reader.flag("use_parallel_residual", default=True),
        "parallel_norms": 2,
        **attention_biases(reader, default=True),
        "mlp_bias": True,
        "max_positions": reader.count("max_position_embeddings", default=2048),
        "dropout": dropout,
        "embedding_dropout": dropout,
        "attention_dropout": reader.share("attention_dropout", default=0.0),
    }


@FAMILIES.register("opt")
def opt(reader: ConfigReader) -> dict[str, Any]:
    """Read OPT: two rows more than positions; the 350M model is narrower at both ends."""
    shape = decoder(reader)
    bias = reader.flag("enable_bias", default=True)
    before = reader.flag("do_layer_norm_before", default=True)
    affine = reader.flag("layer_norm_elementwise_affine", default=True)
    positions = reader.count("max_position_embeddings")
    return {
        **shape,
        "ffn": reader.count("ffn_dim"),
        "activation": reader.text("activation_function", default="relu"),
        "norm": "layer" if affine else "layer_plain",
        "norm_placement": "pre" if before else "post",
        "final_norm": before and not reader.flag("_remove_final_layer_norm", default=False),
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "mlp_bias": bias,
        "positions": "learned",
        "max_positions": positions,
        "position_rows": positions + 2,  # the library offsets positions by the padding rows
        "embedding_width": reader.count("word_embed_proj_dim", default=shape["hidden"]),
        "embedding_projected_first": True,
        "dropout": reader.share("dropout", default=0.1),
        "attention_dropout": reader.share("attention_dropout", default=0.0),
    }


@FAMILIES.register("bloom")
def bloom(reader: ConfigReader) -> dict[str, Any]:
    """Read BLOOM: ALiBi, a norm on the embedding, biases everywhere, tied head."""
    return {
        **decoder(
            reader,
            hidden=("n_embed", "hidden_size"),
            heads=("n_head", "num_attention_heads"),
            layers=("n_layer", "num_hidden_layers"),
        ),
        **_ALL_BIASES,
        "positions": "alibi",
        "embedding_norm": True,
        "dropout": reader.share("hidden_dropout", default=0.0),
        "attention_dropout": reader.share("attention_dropout", default=0.0),
    }


@FAMILIES.register("falcon")
def falcon(reader: ConfigReader) -> dict[str, Any]:
    """Read Falcon 7B, 40B, 180B and the RefinedWeb models, under old and new key names."""
    shape = decoder(
        reader,
        heads=("num_attention_heads", "n_head"),
        layers=("num_hidden_layers", "n_layer"),
    )
    new = reader.flag("new_decoder_architecture", default=False)
    parallel = reader.flag("parallel_attn", default=True) or new
    bias = reader.flag("bias", default=False)
    kv = shape["heads"]
    if new:
        kv = reader.count("num_kv_heads", "n_head_kv", default=kv)
        reader.require_divisor("num_kv_heads", kv, "num_attention_heads", shape["heads"])
    elif reader.flag("multi_query", default=True):
        kv = 1
    return {
        **shape,
        "kv_heads": kv,
        "ffn": reader.count("ffn_hidden_size", default=4 * shape["hidden"]),
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "mlp_bias": bias,
        "parallel": parallel,
        "parallel_norms": reader.count("num_ln_in_parallel_attn", default=2) if new else 1,
        "positions": "alibi" if reader.flag("alibi", default=False) else "rotary",
        "max_positions": reader.count("max_position_embeddings", default=2048),
        "dropout": reader.share("hidden_dropout", default=0.0),
        "attention_dropout": reader.share("attention_dropout", default=0.0),
    }


@FAMILIES.register("mpt")
def mpt(reader: ConfigReader) -> dict[str, Any]:
    """Read MPT: ALiBi, no biases at all, tied head.

    The keys mean what they do in llm-foundry, where such models are trained; the transformers
    library ignores `expansion_ratio`, `qk_ln` and an `alibi` that is off.
    """
    shape = decoder(reader, hidden=("d_model",), heads=("n_heads",), layers=("n_layers",))
    attention = reader.section("attn_config")
    alibi = attention.flag("alibi", default=True)
    return {
        **shape,
        "ffn": reader.count("expansion_ratio", default=4) * shape["hidden"],
        "norm": "layer_weight",
        "positions": "alibi" if alibi else "learned",
        "max_positions": reader.count("max_seq_len", default=2048),
        "attention_dropout": attention.share("attn_pdrop", default=0.0),
        "dropout": reader.share("resid_pdrop", default=0.0),
        "embedding_dropout": reader.share("emb_pdrop", default=0.0),
        "qk_norm": "width" if attention.flag("qk_ln", default=False) else "none",
    }


@FAMILIES.register("phi")
def phi(reader: ConfigReader) -> dict[str, Any]:
    """Read Phi-1 and Phi-2: parallel branches after one norm, biases everywhere."""
    shape = decoder(reader, tied=False)
    return {
        **shape,
        **heads(reader, hidden=shape["hidden"]),
        "ffn": reader.count("intermediate_size"),
        "activation": reader.text("hidden_act", default="gelu_new"),
        **_ALL_BIASES,
        "head_bias": True,
        "parallel": True,
        "qk_norm": "head" if reader.flag("qk_layernorm", default=False) else "none",
        "qk_norm_bias": True,
        "max_positions": reader.count("max_position_embeddings", default=2048),
        "dropout": reader.share("resid_pdrop", default=0.0),
        "embedding_dropout": reader.share("embd_pdrop", default=0.0),
        "attention_dropout": reader.share("attention_dropout", default=0.0),
    }
