"""Configurations of published models: sizes and work equal to those of independent software."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wattree.capture import (
    build_transformer,
    config_shape,
    dense_forward_flop,
    load_model,
    readable_model_types,
)
from wattree.errors import ModelError
from wattree.graph import ModelGraph

Models = dict[str, dict[str, Any]]

#: Counts of `shared/models/expected.json` (PyTorch 2.13, transformers 5.23, meta device) for models
#: whose numbers are their family's defaults, so that a check remains where that data is absent.
BUNDLED: list[tuple[dict[str, Any], int]] = [
    ({"model_type": "gpt2"}, 124_439_808),
    ({"model_type": "gptj"}, 6_050_882_784),
    ({"model_type": "gpt_neox"}, 20_554_567_680),
    ({"model_type": "falcon"}, 6_921_720_704),
    ({"model_type": "llama"}, 6_738_415_616),
    ({"model_type": "mistral"}, 7_241_732_096),
    ({"model_type": "mixtral"}, 46_702_792_704),
    ({"model_type": "deepseek_v3"}, 671_026_404_352),
    ({"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32}, 20_914_757_184),
    ({"model_type": "opt", "architectures": ["OPTForCausalLM"]}, 125_239_296),
    ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, 109_514_298),
    ({"model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"]}, 149_655_232),
    ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, 60_506_624),
]


@pytest.fixture(scope="module")
def published(shared: Path) -> Models:
    """Return the readable configurations of the reference data with their answers."""
    expected = json.loads((shared / "models" / "expected.json").read_text(encoding="utf-8"))
    found = {}
    for name, answers in expected["configs"].items():
        path = shared / "models" / answers["config"]
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
    """A key that is missing means the library's default, whatever the family calls it."""
    assert build_transformer(config_shape(config, "test")).parameters == parameters


def test_most_of_the_reference_configurations_are_readable(published: Models) -> None:
    """Only vision, audio and state-space models stay outside."""
    assert len(published) >= 38


def test_parameter_counts_equal_the_reference(published: Models) -> None:
    """Memory, collectives and optimiser time all scale with this number: it must be exact."""
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
    config = {"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}

    assert build_transformer(config_shape(config, "test")).parameters == 6_738_415_616


def test_a_base_model_has_no_logits() -> None:
    """`GPT2Model` is GPT-2 without its head; the tied table stays."""
    graph = build_transformer(
        config_shape({"model_type": "gpt2", "architectures": ["GPT2Model"]}, "test")
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
        "language transformer; such a model comes in by capturing its module. Read from "
        "config.json: bart, bert, bloom,"
    )
