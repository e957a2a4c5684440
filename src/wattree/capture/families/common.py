"""Keys that several families read in the same way.

Keys and defaults are meant to be those of the transformers library's configuration classes, which
fill in what a file leaves out. Tests hold them against counts of that library. Sizes that every
published file of a family states (width, layers, heads, vocabulary, experts, ...) have no default
here: a file without one is cut short, and the count of another model would pass for its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from wattree.capture.config_reader import ConfigReader

_CAUSAL_ENDINGS: Final = ("ForCausalLM", "LMHeadModel")


def training_class(reader: ConfigReader) -> str:
    """Return the class named in `architectures`, or an empty string."""
    classes = reader.sequence("architectures")
    if not classes:
        return ""
    if not isinstance(classes[0], str):
        reader.fault("architectures", list(classes), "a list of class names")
        return ""
    return classes[0]


def causal_head(reader: ConfigReader) -> str:
    """Return the kind of head of a decoder-only model.

    A file without `architectures` is taken for a language model, since that is what is trained.
    """
    name = training_class(reader)
    if not name or name.endswith(_CAUSAL_ENDINGS):
        return "language_model"
    if name.endswith("Model"):
        return "none"
    reader.fault("architectures", name, "a class ending in ForCausalLM, LMHeadModel or Model")
    return "none"


def no_cross_attention(reader: ConfigReader) -> None:
    """Refuse a decoder that attends to an encoder which its file does not describe."""
    if reader.flag("add_cross_attention", default=False):
        reader.fault("add_cross_attention", found=True, expected="false: half of a model is none")


def attention_biases(reader: ConfigReader, *, default: bool = False) -> dict[str, bool]:
    """Return the biases of a family that has one key for all projections of attention."""
    bias = reader.flag("attention_bias", default=default)
    return {"qkv_bias": bias, "attention_out_bias": bias}


def decoder(
    reader: ConfigReader,
    *,
    hidden: Sequence[str] = ("hidden_size",),
    heads: Sequence[str] = ("num_attention_heads",),
    layers: Sequence[str] = ("num_hidden_layers",),
    tied: bool = True,
) -> dict[str, Any]:
    """Return the common keys of decoder-only models.

    Args:
        reader: The file.
        hidden: Keys of its width, of which messages name the first.
        heads: Keys of its query heads, of which messages name the first.
        tied: Whether the head is tied where the file does not say.
    """
    width, query = reader.count(*hidden), reader.count(*heads)
    reader.require_divisor(heads[0], query, hidden[0], width)
    return {
        "layers": reader.layers(*layers),
        "hidden": width,
        "heads": query,
        "vocab": reader.count("vocab_size"),
        "tied_embedding": reader.flag("tie_word_embeddings", default=tied),
        "head": causal_head(reader),
    }


def heads(
    reader: ConfigReader,
    *,
    hidden: int,
    default_kv_heads: int | None = None,
    default_head_dim: int | None = None,
) -> dict[str, int]:
    """Return query heads, key/value heads and head size, checked against each other.

    The defaults are those of missing keys: a null means as many heads, and the usual size.
    """
    query = reader.count("num_attention_heads")
    kv = reader.count("num_key_value_heads", default=default_kv_heads or query, null=query)
    reader.require_divisor("num_key_value_heads", kv, "num_attention_heads", query)
    usual = max(1, hidden // query)
    head_dim = reader.count("head_dim", default=default_head_dim or usual, null=usual)
    if not reader.has("head_dim") and (reader.mentions("head_dim") or default_head_dim is None):
        reader.require_divisor("num_attention_heads", query, "hidden_size", hidden)
    return {"heads": query, "kv_heads": kv, "head_dim": head_dim}


def sliding_window(reader: ConfigReader, *, default: int, key: str = "sliding_window") -> int:
    """Return the window in tokens, 0 for none: a null means none, a missing key the default."""
    return reader.count(key, default=default, null=0)


def sliding_layers(
    reader: ConfigReader, layers: int, *, sliding: str = "sliding_attention"
) -> tuple[int, ...] | None:
    """Return the layers that `layer_types` marks as sliding, None if the file has no such key."""
    kinds = reader.sequence("layer_types")
    if kinds is None:
        return None
    reader.require_length("layer_types", kinds, layers)
    unknown = [kind for kind in kinds if kind not in (sliding, "full_attention")]
    if unknown:
        reader.fault("layer_types", unknown[0], f"{sliding} or full_attention")
    return tuple(index for index, kind in enumerate(kinds) if kind == sliding)


def no_rope_layers(reader: ConfigReader, layers: int) -> tuple[int, ...]:
    """Return the layers without rotations: zeros of `no_rope_layers`, or one in so many layers."""
    rotated = reader.indices("no_rope_layers")
    if not rotated:
        return every_nth(layers, reader.count("no_rope_layer_interval", default=4))
    reader.require_length("no_rope_layers", rotated, layers)
    return tuple(index for index, is_rotated in enumerate(rotated) if not is_rotated)


def every_nth(layers: int, n: int, first: int = 0) -> tuple[int, ...]:
    """Return the `n`-th of each `n` layers, from layer `first`."""
    return tuple(index for index in range(first, layers) if (index + 1) % n == 0)


def but_every_nth(layers: int, n: int) -> tuple[int, ...]:
    """Return all but the `n`-th of each `n` layers."""
    return tuple(index for index in range(layers) if (index + 1) % n)


def routed_experts(
    reader: ConfigReader, layers: int, *, groups: tuple[int, int] = (1, 1)
) -> dict[str, Any]:
    """Return the mixtures of DeepSeek and what follows it: shared experts, dense first layers.

    Args:
        reader: The file.
        layers: Of the model.
        groups: The library's defaults for groups of experts, and those that a token chooses.
    """
    expert_ffn = reader.count("moe_intermediate_size")
    dense = reader.count("first_k_dense_replace", least=0)
    freq = reader.count("moe_layer_freq", default=1)
    return {
        "experts": reader.count("n_routed_experts"),
        "top_k": reader.count("num_experts_per_tok"),
        "expert_groups": reader.count("n_group", default=groups[0], null=1),
        "group_top_k": reader.count("topk_group", default=groups[1], null=1),
        "expert_ffn": expert_ffn,
        "shared_ffn": expert_ffn * reader.count("n_shared_experts", least=0),
        "moe_layers": tuple(i for i in range(dense, layers) if i % freq == 0),
    }


def scaled_rotations(reader: ConfigReader, *, factor: float = 1.0) -> bool:
    """Return whether rotations also scale queries and keys, as YaRN's do by `0.1 ln(factor) + 1`.

    Args:
        reader: The file.
        factor: That of the library's YaRN where the file says nothing of rotations.
    """
    key = "rope_parameters" if reader.has("rope_parameters") else "rope_scaling"
    if not reader.mentions(key):
        return factor > 1.0
    given = reader.section(key)
    kind = given.text("rope_type", "type", default="default")
    stretch = given.positive("factor", default=1.0)
    # Of both exponents that scale, one divides by the other.
    exponents = [given.least_zero(each) for each in ("mscale", "mscale_all_dim")]
    if all(exponents):
        stretch = 1.0 if exponents[0] == exponents[1] else stretch
    return kind == "yarn" and given.positive("attention_factor", default=stretch) != 1.0


def llama_like(
    reader: ConfigReader,
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    max_positions: int,
    activation: str = "silu",
    tied: bool = False,
) -> dict[str, Any]:
    """Return the shape of a decoder with RMS norms, rotary positions and a gated MLP.

    The arguments are the library's defaults for keys the file leaves out.
    """
    width = reader.count("hidden_size")
    return {
        "layers": reader.layers("num_hidden_layers"),
        "hidden": width,
        "vocab": reader.count("vocab_size"),
        "ffn": reader.count("intermediate_size"),
        **heads(
            reader,
            hidden=width,
            default_kv_heads=kv_heads,
            default_head_dim=head_dim,
        ),
        "gated": True,
        "activation": reader.text("hidden_act", default=activation),
        "norm": "rms",
        "positions": "rotary",
        "scaled_rotary": scaled_rotations(reader),
        "max_positions": reader.count("max_position_embeddings", default=max_positions),
        "attention_dropout": reader.share("attention_dropout", default=0.0),
        "tied_embedding": reader.flag("tie_word_embeddings", default=tied),
        "head": causal_head(reader),
    }
