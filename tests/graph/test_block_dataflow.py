"""Which instance writes the inputs of another, and which tensors are live between two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wattree.capture import load_model
from wattree.errors import ModelError
from wattree.graph import BlockDataflow, Made, ModelGraph


def without_reads(model: ModelGraph, *reads: str) -> ModelGraph:
    """Return a model whose last layer reads something else."""
    *before, layer, head = model.instances
    return replace(model, instances=(*before, replace(layer, reads=reads), head))


def test_a_chain_hands_on_one_tensor() -> None:
    """Each instance reads the one before; the first reads the data."""
    model = load_model("gpt2")
    handed = BlockDataflow(model)

    assert handed.sources[0] == ()
    assert [made.instance for (made,) in handed.sources[1:]] == list(range(13))
    assert [len(alive) for alive in handed.live_at(range(1, 14))] == [1] * 13


def test_the_encoders_end_is_alive_until_the_last_decoder_layer() -> None:
    """And no longer: the head reads the decoder alone."""
    model = load_model("t5-small")
    paths = [instance.path for instance in model.instances]
    end = Made(paths.index("encoder.final"), "final_norm")
    handed = BlockDataflow(model)

    assert handed.last_reader[end] == paths.index("decoder.layers.5")
    starts = [paths.index(path) for path in ("encoder.final", "decoder.layers.5", "head")]
    assert [end in alive for alive in handed.live_at(starts)] == [False, True, False]


def test_what_nothing_makes_is_refused() -> None:
    """With the reader's path and what it reads."""
    broken = without_reads(load_model("t5-small"), "decoder.layers.4/x", "head/logits")

    with pytest.raises(ModelError, match=r"decoder\.layers\.5 reads 'decoder\.layers\.4/x', which"):
        BlockDataflow(broken)


def test_every_input_has_a_maker() -> None:
    """Two inputs, one of them named."""
    broken = without_reads(load_model("t5-small"), "encoder.final/final_norm")

    with pytest.raises(ModelError, match=r"decoder\.layers\.5 has 2 inputs, found who makes 1"):
        BlockDataflow(broken)
