"""Configurations of published models: sizes and work equal to those of independent software."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wattree.capture import (
    build_transformer,
    catalog_entry,
    config_shape,
    dense_forward_flop,
    load_model,
    readable_model_types,
)
from wattree.errors import ModelError
from wattree.graph import ModelGraph

Models = dict[str, dict[str, Any]]


def sized(
    model_type: str, width: int, layers: int, heads: int, vocab: int, *, ffn: int = 0, **more: Any
) -> dict[str, Any]:
    """Return a configuration with the usual names of sizes."""
    return {
        "model_type": model_type,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        **({"intermediate_size": ffn} if ffn else {}),
        **more,
    }


def gpt_like(
    model_type: str, width: int, layers: int, heads: int, vocab: int, **more: Any
) -> dict[str, Any]:
    """Return a configuration with the names of GPT-2."""
    sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "vocab_size": vocab}
    return {"model_type": model_type, **sizes, **more}


LLAMA_7B = sized("llama", 4096, 32, 32, 32000, ffn=11008)

#: Counts of `validation/models/expected.json` (PyTorch 2.13, transformers 5.23, meta device). Keys
#: other than sizes have their family's defaults, which the files there mostly spell out.
BUNDLED: list[tuple[dict[str, Any], int]] = [
    (gpt_like("gpt2", 768, 12, 12, 50257, n_positions=1024), 124_439_808),
    (gpt_like("gptj", 4096, 28, 16, 50400), 6_050_882_784),
    (sized("gpt_neox", 6144, 44, 64, 50432, ffn=24576), 20_554_567_680),
    (sized("falcon", 4544, 32, 71, 65024), 6_921_720_704),
    (sized("llama", 4096, 32, 32, 32000, ffn=11008), 6_738_415_616),
    (sized("mistral", 4096, 32, 32, 32000, ffn=14336), 7_241_732_096),
    (
        sized(
            "mixtral", 4096, 32, 32, 32000, ffn=14336, num_local_experts=8, num_experts_per_tok=2
        ),
        46_702_792_704,
    ),
    (dict(catalog_entry("deepseek-v3").config), 671_026_404_352),
    (
        sized(
            "gpt_oss", 2880, 24, 64, 201088, ffn=2880, num_local_experts=32, num_experts_per_tok=4
        ),
        20_914_757_184,
    ),
    (
        sized(
            "opt", 768, 12, 12, 50272, ffn_dim=3072, max_position_embeddings=2048,
            architectures=["OPTForCausalLM"],
        ),
        125_239_296,
    ),
    (
        sized(
            "bert", 768, 12, 12, 30522, ffn=3072, max_position_embeddings=512,
            architectures=["BertForMaskedLM"],
        ),
        109_514_298,
    ),
    (
        sized(
            "modernbert", 768, 22, 12, 50368, ffn=1152, max_position_embeddings=8192,
            architectures=["ModernBertForMaskedLM"],
        ),
        149_655_232,
    ),
    (
        {
            "model_type": "t5", "d_model": 512, "num_layers": 6, "num_heads": 8, "d_kv": 64,
            "d_ff": 2048, "vocab_size": 32128, "architectures": ["T5ForConditionalGeneration"],
        },
        60_506_624,
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def published(known_models: Path) -> Models:
    """Return the readable configurations of the reference data with their answers."""
    expected = json.loads((known_models / "expected.json").read_text(encoding="utf-8"))
    found = {}
    for name, answers in expected["configs"].items():
        path = known_models / answers["config"]
        config = json.loads(path.read_text(encoding="utf-8"))
        if config["model_type"] in readable_model_types():
            found[name] = {**answers, "path": path, "config": config}
    return found


def graph_of(model: dict[str, Any]) -> ModelGraph:
    """Return the graph with the decoder as long as the reference ran it."""
    shape = config_shape(model["config"], "test")
    lengths = model["input"]
    if lengths["kind"] == "seq2seq":
        ratio = lengths["decoder_seq"] / lengths["seq"]
        shape = replace(shape, decoder_sequence_ratio=ratio)
    return build_transformer(shape)


@pytest.mark.parametrize(
    ("config", "parameters"), BUNDLED, ids=[case["model_type"] for case, _ in BUNDLED]
)
def test_defaults_of_a_family_give_the_known_count(config: dict[str, Any], parameters: int) -> None:
    """A switch that is missing means the library's default, whatever the family calls it."""
    assert build_transformer(config_shape(config, "test")).parameters == parameters


def test_most_of_the_reference_configurations_are_readable(published: Models) -> None:
    """Only vision, audio and state-space models stay outside."""
    assert len(published) >= 38


def test_parameter_counts_equal_the_reference(published: Models) -> None:
    """Memory, collectives and optimizer time all scale with this number: it must be exact."""
    found = {name: graph_of(model).parameters for name, model in published.items()}

    assert found == {name: model["params"] for name, model in published.items()}


def test_forward_work_equals_the_reference(published: Models) -> None:
    """Attention is counted dense on both sides; every other product by its shape."""
    found = {
        name: dense_forward_flop(graph_of(model), model["input"]["batch"], model["input"]["seq"])
        for name, model in published.items()
    }

    assert found == {name: model["flops_forward"] for name, model in published.items()}


def test_a_file_and_its_folder_give_the_same_graph(published: Models) -> None:
    """People point at either."""
    path = published["meta-llama/Llama-3.1-8B"]["path"]

    assert load_model(path).parameters == load_model(str(path.parent)).parameters == 8_030_261_248


def test_quantisation_changes_nothing_in_the_count() -> None:
    """How weights are stored on disk says nothing about training."""
    config = {**LLAMA_7B, "quantization_config": {"quant_method": "fp8"}}

    assert build_transformer(config_shape(config, "test")).parameters == 6_738_415_616


def test_a_base_model_has_no_logits() -> None:
    """`GPT2Model` is GPT-2 without its head; the tied table stays."""
    graph = build_transformer(
        config_shape({**BUNDLED[0][0], "architectures": ["GPT2Model"]}, "test")
    )

    assert [op.path for op in graph.blocks["head"].operators] == ["final_norm"]
    assert graph.parameters == 124_439_808


def test_an_image_model_is_sent_to_module_capture() -> None:
    """The message says why, what to do instead, and what can be read."""
    with pytest.raises(ModelError) as caught:
        config_shape({"model_type": "vit"}, "a/config.json")

    message = str(caught.value)
    assert message.startswith(
        "a/config.json: model_type 'vit' is not read from its configuration, since it is no plain "
        "language transformer; such a model is captured, which needs the extra 'hf' (load_model "
        "does it). Read from config.json: apertus, bart,"
    )
