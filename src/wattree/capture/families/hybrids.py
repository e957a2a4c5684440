"""Hybrids of Mamba-2, attention and feed-forward layers: Nemotron-H and Nemotron 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families.registry import extension
from wattree.capture.layer_kind import MIXERS
from wattree.capture.shape import MOST_LAYERS

#: Names of layers in `layers_block_type` → their letter in `hybrid_override_pattern`.
_LETTERS: Final = {
    **{branch: letter for letter, branch in MIXERS.items()},
    "linear_attention": "M",
    "full_attention": "*",
}


@extension
def layers_of_one_branch(reader: ConfigReader, _: Mapping[str, Any]) -> dict[str, Any]:
    """Add the layers of Nemotron-H, and the sizes of their branches.

    Modules of multi-token prediction are described, and not part of the model: the library drops
    them, and Megatron has as many as a job says.
    """
    pattern = _pattern(reader)
    for key in ("use_bias", "mamba_proj_bias"):
        if reader.flag(key, default=False):
            reader.fault(key, found=True, expected="false: Mamba's projections have no bias here")
    if not reader.flag("use_conv_bias", default=True):
        reader.fault("use_conv_bias", found=False, expected="true")
    predicting = _letters(reader, "mtp_layers_block_type", "mtp_hybrid_override_pattern", "*E")
    # What only further predictions have may be missing where none are trained.
    letters = pattern + "".join(
        letter
        for letter, key in (("-", "intermediate_size"), ("M", "mamba_num_heads"))
        if letter in predicting and reader.has(key)
    )
    shape = {
        "layers": len(pattern) or 1,
        "pattern": pattern,
        "prediction_pattern": predicting,
        "ffn": reader.count("intermediate_size") if "-" in letters else 0,
    }
    return shape | (_mamba(reader) if "M" in letters else {}) | _experts(reader, pattern)


def _letters(reader: ConfigReader, names_key: str, letters_key: str, default: str = "") -> str:
    """Return the letters of layers, from either form of a file; "" after a fault."""
    names = reader.sequence(names_key)
    if names is not None:
        unknown = [name for name in names if not isinstance(name, str) or name not in _LETTERS]
        if unknown or not names:
            found = unknown[0] if unknown else []
            reader.fault(names_key, found, f"a list of {', '.join(_LETTERS)}")
            return ""
        return "".join(_LETTERS[name] for name in names)
    letters = reader.text(letters_key, default=default)
    if not letters or set(letters) - MIXERS.keys():
        expected = f"one letter of {' '.join(MIXERS)} for each layer"
        reader.fault(letters_key, letters, expected)
        return ""
    return letters


def _pattern(reader: ConfigReader) -> str:
    named = "layers_block_type" if reader.has("layers_block_type") else "layer_types"
    pattern = _letters(reader, named, "hybrid_override_pattern")
    if not pattern or reader.has(named):
        return pattern
    layers = reader.count("num_hidden_layers", default=len(pattern), most=MOST_LAYERS)
    if layers != len(pattern):
        reader.fault("num_hidden_layers", layers, f"{len(pattern)}, as the pattern has")
    return pattern


def _mamba(reader: ConfigReader) -> dict[str, int]:
    mamba_heads = reader.count("mamba_num_heads")
    groups = reader.count("n_groups", "mamba_n_groups", default=8)
    reader.require_divisor("n_groups", groups, "mamba_num_heads", mamba_heads)
    return {
        "mamba_heads": mamba_heads,
        "mamba_head_dim": reader.count("mamba_head_dim"),
        "mamba_groups": groups,
        "mamba_state": reader.count("ssm_state_size"),
        "mamba_conv": reader.count("conv_kernel", "mamba_d_conv", default=4),
        "mamba_chunk": reader.count("chunk_size", "mamba_chunk_size", default=128),
    }


def _experts(reader: ConfigReader, pattern: str) -> dict[str, int]:
    if "E" not in pattern:
        return {}
    return {
        "experts": reader.count("n_routed_experts", "num_local_experts"),
        "top_k": reader.count("num_experts_per_tok"),
        "expert_ffn": reader.count("moe_intermediate_size"),
        "shared_ffn": reader.count("moe_shared_expert_intermediate_size"),
        "expert_latent": reader.count("moe_latent_size", default=0),
    }
