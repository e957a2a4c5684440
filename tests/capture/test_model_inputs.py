"""Inputs that are made up for classes of the transformers library, and what to do without."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import Florence2Config

from wattree.capture.huggingface_modules import ConfigurationChoices, recorded_config
from wattree.capture.huggingface_modules.inputs import longest_sequence
from wattree.capture.recording import TensorSource
from wattree.errors import ModelError

COUNTS = ConfigurationChoices(attention="eager", training=False, loss=False)
TINY = {
    "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 64,
    "intermediate_size": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "bark"}, "BarkModel has no forward pass of its own, for .* its module and"),
        (
            {"model_type": "blip_2_qformer"},
            "Blip2QFormerModel takes 'query_embeds', for which no inputs can be made up; give its",
        ),
        # Nothing in its signature says that boxes are required.
        (
            {"model_type": "bros", **TINY},
            "have to specify bbox.* run on input_ids alone: if .* giv",
        ),
    ],
)
def test_a_model_that_needs_other_inputs_is_refused_with_what_to_do(
    config: dict[str, Any], message: str
) -> None:
    """Its module in a file, with inputs."""
    with pytest.raises(ModelError, match=message):
        recorded_config(config, "a", choices=COUNTS)


def test_a_text_on_top_of_an_image_reads_both() -> None:
    """The class says of both that they are optional."""
    config = {
        "model_type": "blip",
        "text_config": {**TINY, "max_position_embeddings": 16},
        "vision_config": {**TINY, "image_size": 32, "patch_size": 16},
        "architectures": ["BlipForConditionalGeneration"],
    }

    recording = recorded_config(config, "a", choices=COUNTS)

    inputs = [t for t in recording.tensors if t.source is TensorSource.INPUT]
    assert [tensor.dtype for tensor in inputs] == ["float32", "int64"]


def test_a_class_of_the_text_alone_takes_the_configuration_of_the_text() -> None:
    """As the library's `AutoModelForCausalLM` builds it from the file of the whole model."""
    text = {**TINY, "num_key_value_heads": 2, "head_dim": 8}
    config = {"model_type": "gemma3", "text_config": text, "architectures": ["Gemma3ForCausalLM"]}

    recording = recorded_config(config, "a", choices=COUNTS, sequence=8)

    assert recording.tensors[0].extents[0].coefficient == TINY["vocab_size"]


def test_the_longest_text_is_not_that_of_the_patches_of_an_image() -> None:
    """Florence-2 numbers 50 rows of patches, and reads texts of 1,024 tokens."""
    config = Florence2Config(vision_config={"max_position_embeddings": 50})

    assert longest_sequence(config) == config.text_config.max_position_embeddings > 50
