"""Inputs that are made up for classes of the transformers library, and what to do without."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import Florence2Config

from wattree.capture.huggingface_modules import (
    ConfigurationChoices,
    huggingface_module,
    recorded_config,
)
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
        # Nothing in its signature says that a language is required.
        ({"model_type": "xmod", **TINY}, "language unknown.* run on input_ids alone: if .* giv"),
        (
            {"model_type": "informer", "lags_sequence": [1]},
            "prediction_length: found none; set the steps",
        ),
    ],
)
def test_a_model_that_needs_other_inputs_is_refused_with_what_to_do(
    config: dict[str, Any], message: str
) -> None:
    """Its module in a file, with inputs."""
    with pytest.raises(ModelError, match=message):
        recorded_config(config, "a", choices=COUNTS)


_WIDE = {**TINY, "hidden_size": 64}
_TALL = {"d_model": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
OTHER: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "bros": (_WIDE, {"input_ids": (2, 8), "bbox": (2, 8, 4)}),
    "lxmert": (
        {
            **TINY, "l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 6,
        },
        {"input_ids": (2, 8), "visual_feats": (2, 36, 6), "visual_pos": (2, 36, 4)},
    ),
    "patchtst": (
        {**_TALL, "context_length": 16, "num_input_channels": 3, "patch_length": 4},
        {"past_values": (2, 16, 3)},
    ),
    "informer": (
        {
            "context_length": 8, "prediction_length": 4, "lags_sequence": [1, 3], "d_model": 16,
            "num_time_features": 1, "encoder_layers": 1, "decoder_layers": 1,
        },
        {
            "past_values": (2, 11), "past_time_features": (2, 11, 1), "past_observed_mask": (2, 11),
            "future_values": (2, 4), "future_time_features": (2, 4, 1),
        },
    ),
    "decision_transformer": (
        {"hidden_size": 16, "n_layer": 1, "n_head": 2, "state_dim": 5, "act_dim": 3},
        {
            "states": (2, 20, 5), "actions": (2, 20, 3), "rewards": (2, 20, 1),
            "returns_to_go": (2, 20, 1), "timesteps": (2, 20), "attention_mask": (2, 20),
        },
    ),
    # Frames before bins, as its feature extractor gives them.
    "parakeet_encoder": (
        {**TINY, "num_mel_bins": 16, "subsampling_conv_channels": 4},
        {"input_features": (2, 3000, 16)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHER)
def test_inputs_have_the_sizes_of_the_configuration(kind: str) -> None:
    """The model runs on them."""
    sizes, expected = OTHER[kind]
    config = {"model_type": kind, **sizes}

    inputs = huggingface_module(config, "a", choices=COUNTS).inputs(2, 8)[1]

    assert {name: tuple(tensor.shape) for name, tensor in inputs.items()} == expected
    assert recorded_config(config, "a", choices=COUNTS, sequence=8).operators


def test_images_are_given_where_tokens_alone_do_not_run() -> None:
    """Encoders that fuse both need both, which no signature says."""
    config = {
        "model_type": "bridgetower", **TINY, "hidden_size": 64, "text_config": _WIDE,
        "vision_config": {"hidden_size": 64, "num_hidden_layers": 1, "image_size": 32},
    }  # fmt: skip

    recording = recorded_config(config, "a", choices=COUNTS, sequence=8)

    assert sum(tensor.source is TensorSource.INPUT for tensor in recording.tensors) == 2
    assert not any("left out" in warning for warning in recording.warnings)


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
