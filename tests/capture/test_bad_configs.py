"""Files that cannot be read: one clear message each, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.capture.sizes import SIZES
from wattree.capture import (
    catalog_entry,
    configuration_names,
    load_model,
    readable_model_types,
    transformer_from_mapping,
)
from wattree.capture.families.registry import EXTENSIONS
from wattree.capture.families.tables import _ENTRIES, _table
from wattree.capture.huggingface import transformer_from_config
from wattree.capture.load import read_config
from wattree.capture.mapping import TRANSFORMER_KEYS
from wattree.errors import ModelError, WattreeError

LLAMA = dict(catalog_entry("llama-3.1-8b").config)

anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 300),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-1, 9) | st.text(max_size=4), max_size=4),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"hidden_size": -4096},
            "hidden_size: found -4096, expected a whole number from 1 to 1000000000",
        ),
        ({"num_hidden_layers": 0}, "num_hidden_layers: found 0, expected a whole number from 1 to"),
        ({"vocab_size": "128k"}, "vocab_size: found '128k', expected a whole number from 1 to"),
        (
            {"num_key_value_heads": 5},
            "num_key_value_heads: found 5, expected a number that divides num_attention_heads (32)",
        ),
        (
            {"num_attention_heads": 33, "num_key_value_heads": 33},
            "num_attention_heads: found 33, expected a number that divides hidden_size (4096)",
        ),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: found 'no', expected true or false"),
        (
            {"attention_dropout": float("nan")},
            "attention_dropout: found nan, expected a number of at least 0 and below 1",
        ),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "architectures: found 'LlamaForSequenceClassification', expected a class ending in",
        ),
    ],
)
def test_a_bad_value_is_named_with_its_key(change: dict[str, Any], message: str) -> None:
    """Place, key, what was found, what was expected."""
    with pytest.raises(ModelError) as caught:
        transformer_from_config({**LLAMA, **change}, "m/config.json")

    assert str(caught.value).startswith(f"m/config.json: {message}")


def test_several_bad_values_are_listed_together() -> None:
    """Mending one at a time is a nuisance."""
    with pytest.raises(ModelError) as caught:
        transformer_from_config(
            {**LLAMA, "vocab_size": 0, "intermediate_size": None, "hidden_size": 1.5}, "config.json"
        )

    assert str(caught.value).splitlines() == [
        "config.json: 3 problems:",
        "  hidden_size: found 1.5, expected a whole number from 1 to 1000000000",
        "  vocab_size: found 0, expected a whole number from 1 to 1000000000",
        "  intermediate_size: is missing; give 'intermediate_size', a whole number from 1 to "
        "1000000000",
    ]


@pytest.mark.parametrize(
    ("model_type", "key"),
    [
        ("llama", "hidden_size"),
        ("llama", "num_hidden_layers"),
        ("llama", "num_attention_heads"),
        ("llama", "intermediate_size"),
        ("llama", "vocab_size"),
        ("gpt2", "n_embd"),
        ("gpt2", "n_positions"),
        ("bert", "max_position_embeddings"),
        ("t5", "d_kv"),
        ("bart", "decoder_ffn_dim"),
        ("opt", "ffn_dim"),
        ("mpt", "d_model"),
        ("electra", "embedding_size"),
        ("mixtral", "num_local_experts"),
        ("qwen3_moe", "moe_intermediate_size"),
        ("qwen2_moe", "shared_expert_intermediate_size"),
        ("deepseek_v3", "kv_lora_rank"),
        ("deepseek_v3", "first_k_dense_replace"),
        ("glm4_moe", "n_shared_experts"),
        ("llama4_text", "intermediate_size_mlp"),
        ("llama4_text", "intermediate_size"),  # of two fields, and one problem
    ],
)
def test_a_missing_size_is_never_guessed(model_type: str, key: str) -> None:
    """A file cut short would pass for the family's first model, billions of parameters off."""
    other_names = {
        "n_embd": ("hidden_size",),
        "n_positions": ("max_position_embeddings",),
        "num_local_experts": ("num_experts",),
    }
    left_out = {key, *other_names.get(key, ())}
    config = {name: size for name, size in SIZES.items() if name not in left_out}
    with pytest.raises(ModelError, match=rf"^config\.json: {key}: is missing; give '{key}'"):
        transformer_from_config({**config, "model_type": model_type}, "config.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "gpt2", "add_cross_attention": True},
            "add_cross_attention: found true, expected false: half of a model is none",
        ),
        (
            {"model_type": "bert", "add_cross_attention": True},
            "add_cross_attention: found true, expected false: half of a model is none",
        ),
        (
            {"model_type": "deberta-v2", "embedding_size": 32},
            "embedding_size: found 32, expected hidden_size (64)",
        ),
        (
            {"model_type": "deberta-v2", "conv_kernel_size": 3},
            "conv_kernel_size: found 3, expected 0: convolutions are not read",
        ),
        (
            {
                "model_type": "deberta-v2",
                "relative_attention": True,
                "share_att_key": True,
                "pos_att_type": "p2c|c2p",
            },
            "norm_rel_ebd: only the form of DeBERTa v3 is read: share_att_key true, pos_att_type "
            "'p2c|c2p', norm_rel_ebd 'layer_norm'",
        ),
    ],
)
def test_a_part_that_is_not_read_is_refused(change: dict[str, Any], message: str) -> None:
    """Left out in silence it would be missing in every count."""
    with pytest.raises(ModelError) as caught:
        transformer_from_config({**SIZES, **change}, "config.json")

    assert str(caught.value) == f"config.json: {message}"


def test_too_many_chosen_experts_are_refused() -> None:
    """Under the key of the file, not the field of our shape."""
    with pytest.raises(ModelError) as caught:
        transformer_from_config(
            {**SIZES, "model_type": "mixtral", "num_experts_per_tok": 9}, "config.json"
        )

    assert str(caught.value) == (
        "config.json: num_experts_per_tok: found 9, expected at most 8, the number of experts"
    )


def test_an_unknown_model_type_suggests_the_nearest() -> None:
    """Half of all such errors are spelling."""
    with pytest.raises(
        ModelError, match=r"unknown model_type 'lama'; did you mean 'llama'\? known"
    ):
        transformer_from_config({"model_type": "lama"}, "config.json")


@pytest.mark.parametrize(
    ("model_type", "name", "expected"),
    [
        ("kimi_k2", "DeepseekV3ForCausalLM", "deepseek_v3"),  # a repository's own name
        ("kimi_k2", "KimiForCausalLM", None),
        ("lama", "LlamaModel", None),  # a slip
        ("mamba", "LlamaForCausalLM", "mamba"),  # the library's
    ],
)
def test_an_unknown_type_is_that_of_its_class(
    tmp_path: Path, model_type: str, name: str, expected: str | None
) -> None:
    """Published files call a class of the library their own, and give code that is never run."""
    file = tmp_path / "config.json"
    own = {"AutoModelForCausalLM": "modeling_own.Own"}
    file.write_text(
        json.dumps({"model_type": model_type, "architectures": [name], "auto_map": own})
    )

    assert read_config(file)["model_type"] == (expected or model_type)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\x00\x01\xff", b'{"model_type": "llama", "hidden_size": NaN}',
     b'{"model_type": 3}', b"{}"],
)  # fmt: skip
def test_a_broken_file_gives_one_error(tmp_path: Path, content: bytes) -> None:
    """Truncated, empty, binary, of another form."""
    file = tmp_path / "config.json"
    file.write_bytes(content)

    with pytest.raises(WattreeError) as caught:
        load_model(file)
    assert str(file) in str(caught.value)


def test_a_missing_file_gives_one_error(tmp_path: Path) -> None:
    """And says which."""
    with pytest.raises(WattreeError, match=r"nothing\.json"):
        load_model(str(tmp_path / "nothing.json"))


def test_an_oversized_file_is_refused_before_reading(tmp_path: Path) -> None:
    """Four MiB is far above any real configuration."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "llama", "junk": "x" * (5 << 20)}), encoding="utf-8")

    with pytest.raises(WattreeError, match=r"config\.json"):
        load_model(file)


@given(data=st.data())
def test_no_value_of_a_config_escapes_the_reader(data: st.DataObject) -> None:
    """Any key of any model with any value: a graph or a `ModelError`, nothing else, at once."""
    config = dict(catalog_entry(data.draw(st.sampled_from(configuration_names()))).config)
    keys = st.sampled_from([*sorted(config), "head_dim", "layer_types", "attention_bias",
                            "sliding_window", "mlp_only_layers", "attn_config"])  # fmt: skip
    config |= data.draw(st.dictionaries(keys, anything, min_size=1, max_size=3))

    try:
        graph = transformer_from_config(config, "config.json")
    except ModelError as error:
        assert str(error).startswith("config.json: ")  # noqa: PT017
    else:
        assert graph.parameters > 0


@given(
    model_type=st.sampled_from(readable_model_types()),
    config=st.dictionaries(st.text(max_size=12).map("x_{}".format), anything, max_size=3),
)
def test_strange_keys_mean_nothing(model_type: str, config: dict[str, Any]) -> None:
    """Public files are full of keys that no reader knows."""
    plain = transformer_from_config({**SIZES, "model_type": model_type}, "c").parameters

    assert (
        plain
        == transformer_from_config({**SIZES, **config, "model_type": model_type}, "c").parameters
    )


@given(st.dictionaries(st.sampled_from(TRANSFORMER_KEYS) | st.text(max_size=5), anything))
def test_no_transformer_block_escapes_the_reader(block: dict[str, Any]) -> None:
    """As for configurations."""
    good = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 100}
    try:
        graph = transformer_from_mapping({**good, **block}, "job.yaml")
    except ModelError as error:
        assert str(error).startswith("job.yaml: ")  # noqa: PT017
    else:
        assert graph.parameters > 0


def test_tables_of_families_name_fields_and_functions_that_exist() -> None:
    """A misspelt one would be found by the first file of the family, and an unused one never."""
    named = {name: _table(name) for name in _ENTRIES}
    functions = {each for table in named.values() for each in table["also"]}
    others = {"also", "defaults", "head"}

    assert functions == set(EXTENSIONS)
    assert {field for table in named.values() for field in table} - others <= set(TRANSFORMER_KEYS)
