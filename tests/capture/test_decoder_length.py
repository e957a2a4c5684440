"""Encoder-decoders whose decoder reads another number of tokens than the encoder."""

from __future__ import annotations

import pytest

from wattree.capture import load_model
from wattree.capture.configuration import model_from_config
from wattree.errors import ModelError
from wattree.lowering.work import model_flop


def _flop(length: int | None) -> float:
    arguments = {} if length is None else {"decoder_length": length}
    graph = load_model("t5-base", arguments=arguments, sequence=512)
    return model_flop(graph, global_batch=1, micro_batch=1, sequence=512)


def test_work_grows_with_the_tokens_of_the_decoder() -> None:
    """Without a length, it reads as many as the encoder."""
    assert _flop(114) < _flop(256) < _flop(512)
    assert _flop(512) == _flop(None)


def test_a_length_that_nothing_states_is_assumed() -> None:
    """T5X reads 512 tokens and writes 114: to take the same for both is twice too slow."""
    stated = load_model("t5-base", arguments={"decoder_length": 512}, sequence=512)
    left_open, decoder = load_model("t5-base"), load_model("gpt2")

    assert "as long as the encoder's" in left_open.assumed[0]
    assert stated.assumed == decoder.assumed == ()


def test_a_model_without_an_encoder_has_no_such_length() -> None:
    """It reads data.sequence_length."""
    with pytest.raises(ModelError, match="decoder_length: found for a model without an encoder"):
        load_model("gpt2", arguments={"decoder_length": 64}, sequence=512)


def test_a_captured_decoder_has_a_length_of_its_own() -> None:
    """It was refused for configurations that no reader knows, such as BlenderBot's."""
    pytest.importorskip("transformers")
    sizes = {"d_model": 64, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "vocab_size": 500}
    layers = {"encoder_layers": 1, "decoder_layers": 2}
    config = {"model_type": "blenderbot", **sizes, **layers}
    config |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}

    def flop(share: float) -> float:
        graph = model_from_config(
            config, "b", sequence=64, changes={"decoder_sequence_ratio": share}
        )
        return model_flop(graph, global_batch=1, micro_batch=1, sequence=64)

    assert flop(0.5) < 0.8 * flop(1.0)
    with pytest.raises(ModelError, match="decoder_length: found for a model without an encoder"):
        model_from_config(
            {"model_type": "xlnet", "d_model": 64, "n_layer": 1, "n_head": 2},
            "b",
            sequence=64,
            changes={"decoder_sequence_ratio": 0.5},
        )
