"""Sizes of a `transformer:` block that are those of a model of the catalog."""

from __future__ import annotations

from typing import Any

import pytest

import wattree
from wattree.capture import (
    TransformerShape,
    build_transformer,
    catalog_entry,
    config_shape,
    configuration_names,
    known_by_sizes,
    readable_model_types,
    transformer_from_mapping,
)

_PRINTED = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated", "vocab")
_OF_EXPERTS = ("experts", "top_k", "expert_ffn", "shared_ffn", "moe_layers")
_QWEN = {
    "layers": 48,
    "hidden": 2048,
    "heads": 32,
    "kv_heads": 4,
    "head_dim": 128,
    "gated": True,
    "vocab": 151936,
    "experts": 128,
    "top_k": 8,
    "expert_ffn": 768,
    "ffn": 768,
}


def _decoders() -> list[TransformerShape]:
    """Return the language models of the catalog that a `transformer:` block can say."""
    entries = [catalog_entry(name) for name in configuration_names()]
    shapes = [
        config_shape(entry.config, entry.name)
        for entry in entries
        if entry.config is not None and entry.config["model_type"] in readable_model_types()
    ]
    return [one for one in shapes if not one.encoder_layers and one.head == "language_model"]


def _printed(shape: TransformerShape) -> dict[str, Any]:
    """Return what tables of sizes print of a model."""
    names = _PRINTED + (_OF_EXPERTS if shape.experts else ())
    block = {name: getattr(shape, name) for name in names}
    block["tied_embedding"] = shape.tied_embedding
    return {name: value for name, value in block.items() if value is not None}


def test_printed_sizes_give_back_the_parameters_and_the_activation_of_the_model() -> None:
    """With what its sizes tell, a decoder has those that it has by its name."""
    wrong, found = {}, 0
    for shape in _decoders():
        block = _printed(shape)
        known = known_by_sizes(block)
        if known is None:
            continue
        found += 1
        said = {**known[1], **block}
        built = transformer_from_mapping(said, "block").parameters
        right = build_transformer(shape).parameters
        activation = said.get("activation", "silu" if shape.gated else "gelu")
        if built != pytest.approx(right, rel=2e-3) or activation != shape.activation:
            wrong[shape.name] = (built, right, known)
    assert not wrong
    assert found > 0.9 * len(_decoders())


def test_a_model_of_another_size_is_no_known_one() -> None:
    """One layer less, another vocabulary, or a fact that contradicts: the block means itself."""
    assert known_by_sizes(_QWEN) is not None
    for other in ({"layers": 47}, {"vocab": 32000}, {"qk_norm": "none", "norm": "layer"}):
        assert known_by_sizes(_QWEN | other) is None


def test_what_the_block_says_is_not_said_again() -> None:
    """Facts that are written down are left to the block."""
    known = known_by_sizes(_QWEN | {"qk_norm": "head"})
    assert known is not None
    assert known[0] == "qwen3-30b-a3b"
    assert "qk_norm" not in known[1]


def _job(**changes: Any) -> wattree.Job:
    return wattree.job_from_mapping(
        {
            "model": {"transformer": _QWEN},
            "data": {"sequence_length": 4096, "global_batch": 64},
            "cluster": {"node": "dgx-h100", "nodes": 1},
            "strategy": {"dp": 1, "ep": 8, "micro_batch": 1},
            **changes,
        }
    )


def test_only_jobs_that_name_their_software_take_it_over() -> None:
    """Without software a block means what it writes; with it, the assumption is printed."""
    plain = wattree.simulate(_job()).result
    named = wattree.simulate(_job(software="megatron-core")).result
    assert not any("qwen3" in said for said in plain.assumed)
    assert any("qk_norm" in said and "qwen3-30b-a3b" in said for said in named.assumed)


def test_software_of_2021_has_learned_positions_unless_the_block_says_otherwise() -> None:
    """Defaults of a software's arguments stand in for what a block without gates leaves out."""
    sizes = {"layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 50000, "gated": False}
    for block, expected in ((sizes, True), ({**sizes, "positions": "alibi"}, False)):
        result = wattree.simulate(
            _job(
                model={"transformer": block},
                software="megatron-lm-2021",
                strategy={"dp": 8, "micro_batch": 1},
            )
        ).result
        assert any("positions learned" in said for said in result.assumed) is expected
        assert any("mlp_bias true" in said for said in result.assumed)
