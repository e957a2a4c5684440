"""The `transformer:` block of a job file."""

from __future__ import annotations

import pytest

from wattree.capture import load_model, transformer_from_mapping
from wattree.errors import ModelError

LLAMA = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256,
    "gated": True, "norm": "rms", "activation": "silu",
}  # fmt: skip
WHERE = "job.yaml: model.transformer"


def test_a_block_can_say_what_the_catalogue_says() -> None:
    """The same numbers give the same operators."""
    assert transformer_from_mapping(LLAMA, WHERE).blocks == load_model("llama-3.1-8b").blocks


def test_four_numbers_are_enough() -> None:
    """Everything else has a usual value: 12 h^2 a layer, two tables of v h, norms of 2 h."""
    graph = transformer_from_mapping({"layers": 2, "hidden": 64, "heads": 4, "vocab": 100}, WHERE)

    assert graph.parameters == 2 * (12 * 64**2 + 4 * 64) + 2 * 100 * 64 + 2 * 64
    assert graph.name == WHERE


def test_shorthands_say_which_layers_differ() -> None:
    """Two dense layers, then every second a mixture; every third without a window."""
    graph = transformer_from_mapping(
        {
            "layers": 6, "hidden": 64, "heads": 4, "vocab": 100, "experts": 4, "top_k": 1,
            "dense_layers": 2, "moe_every": 2, "window": 16, "full_attention_every": 3,
        },
        WHERE,
    )  # fmt: skip

    assert [i.block for i in graph.instances if i.is_layer] == [
        "window_layer", "window_layer", "layer", "window_moe_layer", "window_layer", "moe_layer",
    ]  # fmt: skip


def test_all_faults_are_listed_at_once() -> None:
    """One run, one list, one round of mending."""
    with pytest.raises(ModelError) as caught:
        transformer_from_mapping(
            {"layers": -1, "hiden": 64, "heads": "8", "vocab": 100, "norm": "rsm", "dropout": 2},
            WHERE,
        )

    assert str(caught.value).splitlines() == [
        "job.yaml: model.transformer: 6 problems:",
        "  hiden: unknown key; did you mean 'hidden'?",
        "  layers: found -1, expected a whole number from 1 to 10000",
        "  hidden: is missing; give 'hidden', a whole number from 1 to 1000000000",
        "  heads: found '8', expected a whole number from 1 to 1000000000",
        (
            "  norm: found 'rsm', expected one of rms, layer, layer_weight, layer_plain; "
            "did you mean 'rms'?"
        ),
        "  dropout: found 2, expected a number of at least 0 and below 1",
    ]


def test_a_contradiction_names_the_place() -> None:
    """Also where the block gives the model a name of its own."""
    with pytest.raises(ModelError) as caught:
        transformer_from_mapping({**LLAMA, "kv_heads": 5, "name": "mine"}, WHERE)

    assert str(caught.value) == (
        "job.yaml: model.transformer: kv_heads: found 5, expected a number that divides heads (32)"
    )


def test_a_list_is_no_block() -> None:
    """YAML makes it easy to write one."""
    with pytest.raises(ModelError, match="expected a mapping"):
        transformer_from_mapping(["layers"], WHERE)  # type: ignore[arg-type]


def test_a_window_of_nothing_is_refused() -> None:
    """It is no attention, and not attention without a window."""
    with pytest.raises(ModelError, match="window: found 0, expected a whole number from 1"):
        transformer_from_mapping({**LLAMA, "window": 0}, "here")


@pytest.mark.parametrize("key", ["window_layers", "no_rope_layers", "moe_layers"])
def test_layers_beyond_the_last_are_refused(key: str) -> None:
    """A list that is off by one would otherwise say nothing of its last layer."""
    block = {**LLAMA, "window": 16, "experts": 4, "top_k": 1, key: [31, 32]}
    with pytest.raises(ModelError, match=f"{key}: found layer 32, expected layers from 0 to 31"):
        transformer_from_mapping(block, WHERE)


def test_latent_attention_refuses_what_it_has_no_operators_for() -> None:
    """Rotations are part of how it assembles its keys, in all layers alike."""
    latent = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16}
    with pytest.raises(ModelError) as caught:
        transformer_from_mapping(
            {**LLAMA, **latent, "no_rope_layers": [3], "qk_norm": "head"}, WHERE
        )

    effect = "has no effect with latent attention (kv_lora_rank); leave it out"
    assert str(caught.value).splitlines()[1:] == [
        f"  no_rope_layers: {effect}",
        f"  qk_norm: {effect}",
    ]
