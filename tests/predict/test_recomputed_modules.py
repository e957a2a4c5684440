"""Recomputation of single modules, as Megatron-Core has it."""

from __future__ import annotations

from typing import Any

import pytest

from wattree import Result, job_from_mapping, simulate
from wattree.errors import JobError, StrategyError


def _simulated(model: str, recompute: str, offload: dict[str, Any] | None = None) -> Result:
    job: dict[str, Any] = {
        "model": model,
        "data": {"sequence_length": 1024, "global_batch": 8},
        "precision": "bf16",
        "optimizer": "adamw",
        "cluster": {"node": "dgx-h100", "nodes": 1},
        "strategy": {"preset": "ddp", "dp": 8, "micro_batch": 1, "recompute": recompute},
    }
    if offload is not None:
        job["strategy"]["offload"] = {"activations": offload}
    return simulate(job_from_mapping(job)).result


def _kept_bytes(recompute: str, offload: dict[str, Any] | None = None) -> float:
    return _simulated("llama-2-7b", recompute, offload).memory.by_category["activations"]


def test_every_output_that_is_kept_costs_its_size_and_spares_its_work() -> None:
    """Of 32 layers and 1,024 tokens: a vector of 4,096, or half of the feed-forward part."""
    tokens, layers, kept = 1024, 32, _kept_bytes("full")
    time_s = _simulated("llama-2-7b", "full").step_time_s
    for name, width in (("query", 4096), ("key", 4096), ("context", 4096), ("gate", 11008)):
        found = _simulated("llama-2-7b", f"saves_{name}")
        extra = found.memory.by_category["activations"] - kept
        assert extra == pytest.approx(2 * tokens * layers * width)
        assert found.step_time_s < time_s


def test_some_of_what_is_kept_may_wait_on_the_host() -> None:
    """The inputs of layers alone, or all."""
    offloads = [{"layers": 32}, {"layers": 32, "tensors": ["input"]}, {"layers": 32, "tensors": []}]
    every, inputs, same = (_kept_bytes("saves_query", each) for each in offloads)

    assert same == every < inputs < _kept_bytes("saves_query")


def test_of_a_fused_matmul_the_named_outputs_wait_on_the_host() -> None:
    """Queries, keys and values of Llama 2 are equally wide, and so are gate and up."""
    recompute = "saves_query+key+value+gate+up"

    def moved(*names: str) -> float:
        offload = {"layers": 32, "tensors": list(names)}
        return _kept_bytes(recompute) - _kept_bytes(recompute, offload)

    assert moved("query") == pytest.approx(moved("query", "key", "value") / 3)
    assert moved("gate") == pytest.approx(moved("gate", "up") / 2)


@pytest.mark.parametrize(
    ("recompute", "name"), [("full", "query"), ("saves_query", "key"), ("saves_query", "context")]
)
def test_what_is_not_kept_cannot_wait_on_the_host(recompute: str, name: str) -> None:
    """It would change nothing, without a word."""
    with pytest.raises((JobError, StrategyError), match=f"tensors: found '{name}'"):
        _kept_bytes(recompute, {"layers": 32, "tensors": [name]})


def test_outputs_without_a_name_are_refused() -> None:
    """With those that have one."""
    with pytest.raises(JobError, match="found 'proj' among outputs, expected of query, key"):
        _simulated("llama-2-7b", "saves_query+proj")


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
