"""Sizes of a model as Megatron's arguments, and back. Names are those of its argument parser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from wattree.capture import TransformerShape
from wattree.capture.catalog_entries import is_model_name
from wattree.capture.mapping import shape_from_mapping
from wattree.errors import ModelError
from wattree.frameworks.megatron import FACTS
from wattree.frameworks.models import (
    catalog_name,
    catalog_vocabularies,
    named_by_sizes,
    shape_of,
)
from wattree.frameworks.settings import OPTIONS, Settings
from wattree.units import whole_number

#: Argument → field of the same meaning, where nothing has to be computed.
_SAME: Final = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "ffn_hidden_size": "ffn",
    "num_attention_heads": "heads",
    "kv_channels": "head_dim",
}
_REQUIRED: Final = ("num_layers", "hidden_size", "num_attention_heads")
_OF_EXPERTS: Final = {
    "num_experts": "experts",
    "moe_router_topk": "top_k",
    "moe_ffn_hidden_size": "expert_ffn",
    "moe_shared_expert_intermediate_size": "shared_ffn",
}
#: Groups that tokens choose before experts.
_GROUPS: Final = {"moe_router_num_groups": "expert_groups", "moe_router_group_topk": "group_top_k"}
#: Compressed attention; `q_lora_rank` is left out where queries are not compressed.
_LATENT: Final = {
    "kv_lora_rank": "kv_lora_rank",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
}
#: Tokenizer of mock data, of `vocab_size` and one more token (`_vocab_size_without_eod + 1`).
MOCK_TOKENIZER: Final = {"tokenizer_type": "NullTokenizer"}
_NORMS: Final = {"rms": "RMSNorm", "layer": "LayerNorm"}
#: Other rotations, of which YaRN's also scales, and what only forks have.
_OTHER_POSITIONS: Final = {"yarn": "rotary", "mrope": "rotary", "alibi": "alibi"}
_POSITIONS: Final = {"rotary": "rope", "learned": "learned_absolute", "none": "none"}
#: Fields that no step depends on, that others say, or that are of the library's way to write it.
_ASIDE: Final = frozenset(
    {
        *("name", "architecture", "sources", "activation", "max_positions", "position_rows"),
        *("vocab", "unread_parameters", "predictions"),
        *("norm_steps", "joint_projections", "stepwise_attention", "concatenated_rotary"),
        *("wide_rotary", "casts_softmax"),
    }
)
#: Names by which gates are activated that `--swiglu` stands for, and those of what there is
#: without gates: GELU, which has no argument, and `--squared-relu`.
SWIGLU: Final = ("silu", "swish", "swiglu")
_GELU: Final = (
    "gelu",
    "gelu_accurate",
    "gelu_fast",
    "gelu_new",
    "gelu_python",
    "gelu_pytorch_tanh",
)
_SQUARED: Final = "relu2"


def model_arguments(shape: TransformerShape) -> dict[str, Any]:
    """Return the arguments that describe a model."""
    found: dict[str, Any] = {name: getattr(shape, field) for name, field in _SAME.items()}
    if shape.kv_heads != shape.heads and not shape.kv_lora_rank:
        found |= {"group_query_attention": True, "num_query_groups": shape.kv_heads}
    if shape.kv_lora_rank:
        found |= {name: getattr(shape, field) for name, field in _LATENT.items()}
        found["multi_latent_attention"] = True
        if shape.q_lora_rank:
            found["q_lora_rank"] = shape.q_lora_rank
    has_all = shape.qkv_bias and shape.attention_out_bias and shape.mlp_bias
    found |= {
        "swiglu": shape.gated,
        "squared_relu": not shape.gated and shape.activation == _SQUARED,
        "normalization": _NORMS.get(shape.norm, "LayerNorm"),
        "position_embedding_type": (
            "yarn" if shape.scaled_rotary else _POSITIONS.get(shape.positions, "none")
        ),
        "untie_embeddings_and_output_weights": not shape.tied_embedding,
        "disable_bias_linear": not has_all,
        "add_qkv_bias": shape.qkv_bias and not has_all,
        # Compressed queries and keys always have their norms here.
        "qk_layernorm": shape.qk_norm in ("head", "width") or bool(shape.kv_lora_rank),
        "qk_l2_norm": shape.qk_norm == "plain",
        "attention_dropout": shape.attention_dropout,
        "hidden_dropout": shape.dropout,
        # The tokenizer of mock data has one more, the end of documents.
        "vocab_size": shape.padded_vocab - 1,
        "make_vocab_size_divisible_by": 1,
    }
    return found | _expert_arguments(shape) | _window_arguments(shape)


def _expert_arguments(shape: TransformerShape) -> dict[str, Any]:
    if not shape.experts:
        return {}
    found: dict[str, Any] = {
        name: value for name, field in _OF_EXPERTS.items() if (value := getattr(shape, field))
    }
    if shape.moe_layers is not None and len(shape.moe_layers) < shape.layers:
        found["moe_layer_freq"] = _pattern(shape.moe_layers, shape.layers)
    if shape.shared_gate:
        found["moe_shared_expert_gate"] = True
    if shape.expert_groups > 1:
        found |= {name: getattr(shape, field) for name, field in _GROUPS.items()}
    return found


def _window_arguments(shape: TransformerShape) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if shape.window:
        found["window_size"] = f"{shape.window - 1},0"
        if shape.window_layers is not None:
            found["window_attn_skip_freq"] = _pattern(shape.window_layers, shape.layers)
    if shape.no_rope_layers:
        found["no_rope_freq"] = _pattern(shape.no_rope_layers, shape.layers)
    if shape.attention_sinks:
        found["softmax_type"] = "learnable"
    return found


def model_misfits(shape: TransformerShape) -> dict[str, str]:
    """Return what of a model its arguments do not bring back, by field of its shape."""
    given = {name: str(value) for name, value in model_arguments(shape).items()}
    settings = Settings.of(given | MOCK_TOKENIZER)
    try:
        back = shape_from_mapping(model_block(settings, sequence=shape.max_positions or 1), "model")
    except ModelError as error:
        return {"model": f"has sizes that Megatron cannot have: {error}"}
    lost = [
        f"{field.name} {getattr(shape, field.name)}"
        for field in fields(TransformerShape)
        if field.name not in _ASIDE
        and getattr(shape, field.name) != getattr(back, field.name)
        and not (field.name == "moe_layers" and _mixtures(shape) == _mixtures(back))
    ]
    if shape.activation.lower() not in (SWIGLU if shape.gated else (*_GELU, _SQUARED)):
        lost.append(f"{'gates with' if shape.gated else 'activation'} {shape.activation}")
    return {"model": f"Megatron's GPT model has no {', '.join(lost)}"} if lost else {}


def _mixtures(shape: TransformerShape) -> tuple[int, ...]:
    """Return the layers that have experts."""
    return tuple(range(shape.layers)) if shape.moe_layers is None else shape.moe_layers


def model_block(settings: Settings, *, sequence: int) -> dict[str, Any]:
    """Return the `transformer:` block that arguments describe.

    Args:
        settings: Arguments by the name of their destination.
        sequence: Tokens of a sample, where the arguments give no longest sequence.
    """
    block: dict[str, Any] = {
        field: settings.count(name, 1) if name in settings else 1
        for name, field in _SAME.items()
        if name in settings or name in _REQUIRED
    }
    for name in _REQUIRED:
        if name not in settings:
            settings.problem(name, f"is missing; {OPTIONS['model']} takes a model instead")
    for name, kind in FACTS["foreign_layers"].items():
        if settings.value(name) is not None:
            settings.problem(name, f"names {kind}, whose sizes are not read: expected attention")
    groups = settings.count("num_query_groups", 1)
    if settings.flag("group_query_attention"):
        block["kv_heads"] = groups
    block |= _latent_block(settings) | _details(settings, sequence) | _vocabulary(settings)
    layers = block["layers"]
    return block | _expert_block(settings, layers) | _window_block(settings, layers)


def assumed_vocabulary(
    settings: Settings, block: Mapping[str, Any], positions: int
) -> dict[str, int]:
    """Return the vocabulary of a model that leaves it to its tokenizer, by its other sizes."""
    is_whole = False  # whether a model of the catalog has all of them
    kind = settings.text("tokenizer_type", "GPT2BPETokenizer")
    rows: int = FACTS["vocabularies"].get(kind, FACTS["vocabularies"]["other"])
    trained = catalog_name(settings.text("tokenizer_model"), settings)
    shape = shape_of(trained) if is_model_name(trained) else None
    if shape is not None:
        rows = shape.vocab
    for known in () if shape is not None else catalog_vocabularies():
        name = named_by_sizes({**block, "vocab": known}, positions)
        if isinstance(name, str) and not is_whole:
            rows, alike = known, shape_of(name)
            is_whole = alike is not None and alike.max_positions == positions
    named = f" ({kind})" if "tokenizer_type" in settings else ""
    settings.assume(f"vocabulary of {rows}: the file leaves it to the tokenizer{named}")
    return {"vocab": rows}


def given_model(settings: Settings) -> tuple[str, int, bool] | None:
    """Return the model that a user names in place of a file's: name, layers, whether with experts.

    Sizes in the file are read and replaced, so that none of them is wrong or not understood.
    """
    name = settings.given.model
    if name is None:
        return None
    problems, notes = len(settings.problems), len(settings.notes)
    block = model_block(settings, sequence=1)
    del settings.problems[problems:], settings.notes[notes:]
    if "num_layers" in settings or "recipe" in settings:
        settings.assume(f"model {name} in place of that of the file")
    shape = shape_of(name)
    if shape is None:
        return name, block["layers"], "experts" in block
    return name, shape.layers, bool(shape.experts)


def _latent_block(settings: Settings) -> dict[str, Any]:
    if not settings.flag("multi_latent_attention"):
        return {}
    usual = {"kv_lora_rank": 32, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128}
    found = {field: settings.count(name, usual[name]) for name, field in _LATENT.items()}
    found["head_dim"] = found["qk_nope_head_dim"] + found["qk_rope_head_dim"]
    if "q_lora_rank" in settings:
        found["q_lora_rank"] = settings.count("q_lora_rank", 0, least=0)
    return found


def _details(settings: Settings, sequence: int) -> dict[str, Any]:
    gated = settings.flag("swiglu") or settings.flag("quick_geglu")
    is_latent = settings.flag("multi_latent_attention")
    is_clamped = settings.number("activation_func_clamp_value", 0.0) > 0.0
    positions = settings.choice(
        "position_embedding_type",
        "rope" if settings.flag("use_rotary_position_embeddings") else "learned_absolute",
        {word: meaning for meaning, word in _POSITIONS.items()} | _OTHER_POSITIONS,
    )
    has_bias = not settings.flag("disable_bias_linear")
    usual = 0.0 if gated else 0.1  # models with gates have none; the arguments' default is 0.1
    dropout = settings.number("hidden_dropout", usual)
    longest = settings.count("max_position_embeddings", sequence)
    ungated = _SQUARED if settings.flag("squared_relu") else "gelu"
    found: dict[str, Any] = {
        "gated": gated,
        "activation": ("silu_clamped" if is_clamped else "silu") if gated else ungated,
        "norm": settings.choice(
            "normalization", "LayerNorm", {word: meaning for meaning, word in _NORMS.items()}
        ),
        "positions": positions,
        "scaled_rotary": settings.text("position_embedding_type") == "yarn" and not is_latent,
        "tied_embedding": not settings.flag("untie_embeddings_and_output_weights"),
        "qkv_bias": has_bias or settings.flag("add_qkv_bias"),
        "attention_out_bias": has_bias,
        "mlp_bias": has_bias,
        "qk_norm": _qk_norm(settings, is_latent=is_latent),
        "dropout": dropout,
        "embedding_dropout": dropout,
        "embedding_norm": settings.flag("embed_layernorm"),  # of Megatron-DeepSpeed
        "attention_dropout": settings.number("attention_dropout", usual),
        "attention_sinks": settings.text("softmax_type", "vanilla") == "learnable",
    }
    if positions == "learned":
        found["max_positions"] = longest
    return found


def _qk_norm(settings: Settings, *, is_latent: bool) -> str:
    has_weights, has_none = (settings.flag(name) for name in ("qk_layernorm", "qk_l2_norm"))
    if is_latent:
        return "none"
    return "plain" if has_none else "head" if has_weights else "none"


def _vocabulary(settings: Settings) -> dict[str, int]:
    """Return the rows of the token table, padded as Megatron pads them."""
    every = settings.count("make_vocab_size_divisible_by", 128)
    if "padded_vocab_size" in settings:
        return {"vocab": settings.count("padded_vocab_size", 1)}
    if "vocab_size" not in settings:
        return {}
    rows = settings.count("vocab_size", 1)
    tensor = settings.count("tensor_model_parallel_size", 1)
    is_mock = settings.text("tokenizer_type") == MOCK_TOKENIZER["tokenizer_type"]
    whole = rows + is_mock
    if every == 1:  # the table is as long as it has to be
        rows = whole
    padded = -(-whole // (every * tensor)) * every * tensor
    return {"vocab": rows, **({"padded_vocab": padded} if padded != rows else {})}


def _expert_block(settings: Settings, layers: int) -> dict[str, Any]:
    if "num_experts" not in settings:
        return {}
    found: dict[str, Any] = {
        field: settings.count(name, 2 if field == "top_k" else 1)
        for name, field in _OF_EXPERTS.items()
        if name in settings or field == "top_k"
    }
    if settings.flag("moe_shared_expert_gate"):
        found["shared_gate"] = True
    found |= {field: settings.count(name, 1) for name, field in _GROUPS.items() if name in settings}
    chosen = _layers_of(settings, "moe_layer_freq", layers, every=lambda layer, n: layer % n == 0)
    if chosen is not None and len(chosen) < layers:
        found["moe_layers"] = chosen
    return found


def _window_block(settings: Settings, layers: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    plain = _layers_of(
        settings, "no_rope_freq", layers, every=lambda layer, n: (layer + 1) % n == 0
    )
    if plain:
        found["no_rope_layers"] = plain
    if "window_size" not in settings:
        return found
    ahead = re.match(r"\W*(\d+)", str(settings.value("window_size")))
    if ahead is None:
        settings.problem("window_size", "expected two whole numbers")
        return {}
    found["window"] = int(ahead[1]) + 1
    chosen = _layers_of(
        settings, "window_attn_skip_freq", layers, every=lambda layer, n: (layer + 1) % n != 0
    )
    return found if chosen is None else {**found, "window_layers": chosen}


def _layers_of(settings: Settings, key: str, layers: int, *, every: Any) -> list[int] | None:
    """Return the layers that a pattern chooses: a number, or a list of 0 and 1 as Python has it."""
    value = settings.value(key)
    if value is None:
        return None
    text = str(value).replace(" ", "").strip("'\"")
    if number := whole_number(text):
        return [layer for layer in range(layers) if every(layer, number)]
    chosen = expanded(text)
    if chosen is None or len(chosen) != layers:
        settings.problem(key, f"found {text[:80]!r}, expected a number or a 0 or 1 for each layer")
        return None
    return [layer for layer, is_chosen in enumerate(chosen) if is_chosen]


#: The longest list that a pattern may stand for.
_MOST: Final = 10_000


def expanded(text: str) -> list[int] | None:
    """Return what a pattern such as `([0]*3+[1]*1)*2` stands for; None if it is no such pattern."""
    while (inner := re.search(r"\(([^()]*)\)(?:\*(\d{1,4}))?", text)) is not None:
        found = _flat(inner[1])
        if found is None or len(found) * int(inner[2] or 1) > _MOST:
            return None
        text = text.replace(inner[0], str(found * int(inner[2] or 1)).replace(" ", ""), 1)
    return _flat(text)


def _flat(text: str) -> list[int] | None:
    found: list[int] = []
    for term in text.split("+"):
        match = re.fullmatch(r"\[([01](?:,[01])*|)\](?:\*(\d{1,4}))?", term)
        if match is None or len(found) > _MOST:
            return None
        found += [int(each) for each in match[1].split(",") if each] * int(match[2] or 1)
    return found


def _pattern(chosen: tuple[int, ...], layers: int) -> str:
    """Return the layers that are chosen as runs of 0 and 1, such as `[0]*3+[1]*58`."""
    flags = [int(layer in chosen) for layer in range(layers)]
    runs: list[list[int]] = []
    for flag in flags:
        if runs and runs[-1][0] == flag:
            runs[-1][1] += 1
        else:
            runs.append([flag, 1])
    return "+".join(f"[{flag}]*{count}" for flag, count in runs)
