"""Encoder-decoders whose decoder reads another number of tokens than the encoder."""

from __future__ import annotations

import pytest

from wattree.capture import load_model
from wattree.errors import ModelError
from wattree.lowering.work import model_flop


def _flop(length: int | None) -> float:
    arguments = {} if length is None else {"decoder_length": length}
    graph = load_model("t5-base", arguments=arguments, sequence=512)
    return model_flop(graph, global_batch=1, sequence=512)


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
