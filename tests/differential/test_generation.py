"""A decode step against the transformers library: FLOP counted, keys and values cached."""

from __future__ import annotations

from typing import Any

import pytest

from wattree.cost import load_calibration
from wattree.job import Job, job_from_mapping
from wattree.lowering.setting import stated_setting
from wattree.lowering.workload import GenerationPhase

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Importing torch and transformers takes most of the time of a quick round.
pytestmark = pytest.mark.slow

#: Sizes of a small decoder: as the library has them, and as a `transformer:` block has them.
SIZES = {"layers": 2, "hidden": 64, "heads": 8, "kv_heads": 2, "ffn": 96, "vocab": 128}
BATCH, PROMPT, GENERATED = 3, 11, 5


def job() -> Job:
    """Return a job that generates with the small decoder."""
    return job_from_mapping(
        {
            "workload": "generate",
            "model": {"transformer": {**SIZES, "gated": True, "norm": "rms"}},
            "data": {
                "prompt_length": PROMPT,
                "generate_length": GENERATED,
                "global_batch": BATCH,
            },
            "cluster": {"node": "dgx-h100"},
            "place": {"devices": "0"},
            "strategy": {"dp": 1, "micro_batch": BATCH},
        }
    )


def decoder() -> Any:
    """Return the library's model of the same sizes."""
    config = transformers.LlamaConfig(
        num_hidden_layers=SIZES["layers"],
        hidden_size=SIZES["hidden"],
        num_attention_heads=SIZES["heads"],
        num_key_value_heads=SIZES["kv_heads"],
        intermediate_size=SIZES["ffn"],
        vocab_size=SIZES["vocab"],
        max_position_embeddings=64,
        attn_implementation="eager",  # of the fused one, FLOP on processors are not counted
    )
    return transformers.LlamaForCausalLM(config).eval()


def test_a_decode_step_has_the_flop_and_the_cache_of_the_library() -> None:
    """Products of one row for each sequence, attention over all that is cached, nothing else."""
    from torch.utils.flop_counter import FlopCounterMode

    model = decoder()
    tokens = torch.zeros((BATCH, PROMPT), dtype=torch.long)
    with torch.no_grad():
        cache = model(tokens, use_cache=True).past_key_values
        for length in range(PROMPT + 1, PROMPT + GENERATED):
            counter = FlopCounterMode(display=False)
            with counter:
                cache = model(tokens[:, :1], past_key_values=cache, use_cache=True).past_key_values
            phase = GenerationPhase(cache_length=length)
            step = stated_setting(job(), load_calibration(), phase=phase)
            assert counter.get_total_flops() == step.model_flop(), length
    values = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    per_token = SIZES["layers"] * 2 * SIZES["kv_heads"] * (SIZES["hidden"] // SIZES["heads"])

    assert values == per_token * BATCH * (PROMPT + GENERATED - 1)
    (attention,) = {
        operator.cache.elements
        for block in step.model.blocks.values()
        for operator in block.operators
        if operator.cache is not None
    }
    assert attention * SIZES["layers"] == per_token
