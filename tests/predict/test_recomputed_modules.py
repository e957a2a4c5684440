"""Recomputation of single modules, as Megatron-Core has it."""

from __future__ import annotations

import pytest

from wattree import Result, job_from_mapping, simulate
from wattree.errors import StrategyError


def _simulated(model: str, recompute: str) -> Result:
    job = {
        "model": model,
        "data": {"sequence_length": 1024, "global_batch": 8},
        "precision": "bf16",
        "optimizer": "adamw",
        "cluster": {"node": "dgx-h100", "nodes": 1},
        "strategy": {"preset": "ddp", "dp": 8, "micro_batch": 1, "recompute": recompute},
    }
    return simulate(job_from_mapping(job)).result


@pytest.mark.parametrize("module", ["layernorm", "moe_act", "mla_up_proj", "moe"])
def test_modules_that_are_recomputed_free_memory_for_time(module: str) -> None:
    """Megatron-Core discards the outputs of the first three, which others save, too."""
    kept, again = (_simulated("deepseek-v2-lite", way) for way in ("none", f"modules_{module}"))
    saved, less = (each.memory.by_category["activations"] for each in (kept, again))

    assert less < 0.99 * saved
    assert again.step_time_s > kept.step_time_s


@pytest.mark.parametrize("module", ["moe_act", "mla_up_proj"])
def test_modules_that_a_model_lacks_are_refused(module: str) -> None:
    """GPT-2 has no experts and no latent attention."""
    with pytest.raises(StrategyError, match=f"has no module '{module}'"):
        _simulated("gpt2", f"modules_{module}")
