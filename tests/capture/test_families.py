"""Types that only the library has answers for: equal to those of its modules."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.each import each
from wattree.capture import build_transformer, config_shape, dense_forward_flop, load_model
from wattree.errors import ModelError
from wattree.graph import DimRole

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

_SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2,
    "vocab_size": 128, "intermediate_size": 96, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_ROUTED: dict[str, Any] = {
    "head_dim": 16, "moe_intermediate_size": 48, "n_routed_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
_ERNIE: dict[str, Any] = {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 48}
_LLAMA4: dict[str, Any] = {
    "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 200,
}  # fmt: skip
#: Which the library takes for as many heads, and for the usual size.
_NULLS: dict[str, Any] = {"num_key_value_heads": None, "head_dim": None}
#: Type, class of its language model, and configurations: keys that differ from the defaults.
_TYPES: list[tuple[str, str, list[dict[str, Any]]]] = [
    ("apertus", "Apertus", [{}, {"attention_bias": True}]),
    ("cohere", "Cohere", [{}, {"use_qk_norm": True}]),
    ("ernie4_5", "Ernie4_5", [{}, _NULLS, {"use_bias": True, "tie_word_embeddings": False}]),
    (
        "ernie4_5_moe", "Ernie4_5_Moe",
        [
            _ERNIE,
            {
                **_ERNIE, "moe_num_shared_experts": 0, "moe_layer_start_index": 3,
                "moe_layer_end_index": 6, "moe_layer_interval": 2, "use_bias": True,
                "tie_word_embeddings": False,
            },
            {**_ERNIE, "moe_layer_end_index": 8},
        ],
    ),
    (
        "exaone4", "Exaone4",
        [{}, {"sliding_window": None, "layer_types": ["full_attention"] * 8}],
    ),
    (
        "glm4_moe", "Glm4Moe",
        [
            {**_ROUTED, "n_shared_experts": 1, "first_k_dense_replace": 1},
            {
                **_ROUTED, "n_shared_experts": 2, "first_k_dense_replace": 3, "use_qk_norm": True,
                "attention_bias": True,
            },
        ],
    ),
    (
        "hunyuan_v1_moe", "HunYuanMoEV1",
        [{"head_dim": 16, "num_experts": 8, "moe_topk": 2, "attention_bias": True}],
    ),
    (
        "llama4_text", "Llama4",
        [
            _LLAMA4,
            {**_LLAMA4, "moe_layers": [1, 2], "no_rope_layers": [1, 0] * 4},
            {
                **_LLAMA4, "interleave_moe_layer_step": 2, "use_qk_norm": False,
                "attention_bias": True,
            },
        ],
    ),
    (
        "minimax_m2", "MiniMaxM2",
        [{"head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 2}],
    ),
    ("olmoe", "Olmoe", [{"num_experts": 8, "num_experts_per_tok": 2}]),
    ("olmo3", "Olmo3", [{}, {"attention_bias": True, "tie_word_embeddings": True}]),
    ("qwen2", "Qwen2", [{"num_key_value_heads": None}]),
    (
        "seed_oss", "SeedOss",
        [{}, _NULLS, {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True}],
    ),
    (
        "smollm3", "SmolLM3",
        [{}, {"num_key_value_heads": None}, {"attention_bias": True, "mlp_bias": True}],
    ),
    ("stablelm", "StableLm", [{}, {"qk_layernorm": True, "use_qkv_bias": True}]),
    ("starcoder2", "Starcoder2", [{"use_bias": False}, {"tie_word_embeddings": False}]),
]  # fmt: skip
_CONFIGS: list[dict[str, Any]] = [
    {**_SIZES, "model_type": kind, "architectures": [f"{name}ForCausalLM"], **more}
    for kind, name, configs in _TYPES
    for more in configs
]


@each("config", _CONFIGS)
def test_parameters_are_those_of_the_module(config: dict[str, Any]) -> None:
    """Which layers have experts, norms or biases, each type says by keys of its own."""
    given = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(given)

    found = build_transformer(config_shape(config, "test")).parameters
    assert found == sum(parameter.numel() for parameter in module.parameters())


#: The last of each type, which sets most.
_LAST: list[dict[str, Any]] = [
    next(each for each in reversed(_CONFIGS) if each["model_type"] == kind) for kind, *_ in _TYPES
]

#: Types whose layers are of several kinds, and after how many layers all of them have come.
_KINDS = dict.fromkeys(("exaone4", "glm4_moe", "llama4_text", "olmo3", "smollm3"), 4)
_KINDS["ernie4_5_moe"] = 2

#: The same with as few layers as tell all kinds of them apart.
_SHORTER: list[dict[str, Any]] = [
    {
        key: value[:4] if key == "layer_types" else 2 if key == "moe_layer_end_index" else value
        for key, value in {
            **config, "num_hidden_layers": _KINDS.get(config["model_type"], 1),
        }.items()
    }
    for config in _LAST
]  # fmt: skip


@each("config", _SHORTER, more=_LAST)
def test_forward_work_is_that_of_the_captured_module(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """Experts count by the tokens that they see, attention as if it were dense."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    read, captured = (
        dense_forward_flop(load_model(path, capture=capture, sequence=64), 2, 64)
        for capture in (False, True)
    )

    assert captured == pytest.approx(read, rel=0.001)


@pytest.mark.parametrize(
    ("model_type", "keys", "expected"),
    [
        ("exaone4", {}, ["window_layer"] * 3 + ["no_rope_layer"]),
        ("olmo3", {}, ["window_layer"] * 3 + ["layer"]),
        ("smollm3", {}, ["layer"] * 3 + ["no_rope_layer"]),
        (
            "llama4_text",
            {**_LLAMA4, "interleave_moe_layer_step": 2},
            ["window_layer", "window_moe_layer", "window_layer", "no_rope_moe_layer"],
        ),
    ],
)
def test_layers_take_turns(model_type: str, keys: dict[str, Any], expected: list[str]) -> None:
    """With windows and rotations, and in the fourth without one of them."""
    config = {**_SIZES, "num_hidden_layers": 4, "model_type": model_type, **keys}
    graph = build_transformer(config_shape(config, "test"))

    assert [each.block for each in graph.instances if each.is_layer] == expected


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        (
            {"model_type": "smollm3", "no_rope_layers": [1] * 9},
            "no_rope_layers: found '9 entries', expected 8, one for each layer",
        ),
        (
            {"model_type": "hunyuan_v1_moe", "num_experts": 8, "moe_topk": [2] * 7},
            "moe_topk: found '7 entries', expected 8, one for each layer",
        ),
        (
            {"model_type": "llama4_text", **_LLAMA4, "moe_layers": [1, 8]},
            "moe_layers: found 8, expected layer numbers from 0 to 7",
        ),
    ],
)
def test_a_list_for_other_layers_is_refused(config: dict[str, Any], fault: str) -> None:
    """It is of another model, or of this one before its layers were counted again."""
    with pytest.raises(ModelError, match=re.escape(fault)):
        config_shape({**_SIZES, **config}, "test")


@pytest.mark.parametrize(("kind", "key"), [("cohere", "use_qk_norm"), ("stablelm", "qk_layernorm")])
def test_norms_of_each_head_are_split_with_the_heads(kind: str, key: str) -> None:
    """Each head has weights of its own, so no tensor rank needs those of another."""
    block = build_transformer(config_shape({**_SIZES, "model_type": kind, key: True}, "test"))
    norms = [
        each for each in block.blocks["layer"].operators if each.path.endswith(("q_norm", "k_norm"))
    ]

    assert [each.dims[-1].role for each in norms] == [DimRole.SPLITTABLE] * 2
    assert [each.parameters[0].dims for each in norms] == [("heads",)] * 2
