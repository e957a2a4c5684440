"""Strategies as results print them: pasted back into a job they give the same graph."""

from __future__ import annotations

from typing import Any

import pytest

from wattree.job import job_from_mapping
from wattree.predict import Prediction, simulate

#: Samples of a step; two pipeline stages then have two micro-batches of 4.
BATCH = 16
STRATEGIES: dict[str, dict[str, Any]] = {
    "custom order": {
        "preset": "megatron",
        "pp": 2,
        "tp": 2,
        "micro_batch": 4,
        "schedule": "custom",
        "order": ["F0 F1 I0 W0 I1 W1", "F0 I0 F1 I1 W0 W1"],
    },
    "folded order, two chunks": {
        "preset": "ddp",
        "pp": 2,
        "micro_batch": 4,
        "schedule": "custom",
        "placement": "folded",
        "virtual_stages": 2,
        "order": ["F0 F0@1 B0@1 B0", "F0 F0@1 B0@1 B0"],
    },
    "uneven stages": {"preset": "megatron", "pp": 2, "tp": 2, "stage_layers": [5, 7]},
    "two chunks": {"preset": "ddp", "pp": 2, "virtual_stages": 2, "stage_layers": [2, 3, 3, 4]},
    "gathers": {
        "preset": "fsdp",
        "prefetch": {"forward": 2, "backward": "none", "gathers_in_flight": 2},
        "reshard_after_forward": False,
        "in_line": ["gradients"],
        "overlap_optimizer": True,
    },
    "pieces": {
        "preset": "zero1",
        "pp": 2,
        "overlap_pipeline": False,
        "bucket": {"gradients": "3 MB", "parameters": "5 MB"},
    },
    "host": {
        "preset": "fsdp",
        "offload": {
            "optimizer": "host",
            "parameters": "host",
            "activations": {"layers": 3, "to": "host", "prefetch": 2},
        },
    },
    "ring": {"preset": "ddp", "cp": 2, "context": "ring", "context_order": "contiguous"},
    "gather": {"preset": "ddp", "cp": 2, "context": "gather"},
    "ulysses": {"preset": "zero1", "cp": 2, "tp": 2, "context": "ulysses"},
    "phantom": {"preset": "phantom", "tp": 2, "ghosts": 8},
    "regathered": {"preset": "phantom", "tp": 2, "ghosts": 8, "regather": True},
    "products": {"preset": "megatron", "tp": 2, "tensor_pieces": 3},
    "reductions": {"preset": "zero2", "reduce_every_micro_batch": False},
    "switches": {"preset": "zero2", "overlap_gradients": False, "overlap_parameters": False},
}


def simulated(strategy: dict[str, Any]) -> Prediction:
    """Return the prediction of a strategy for GPT-2 on eight devices."""
    return simulate(
        job_from_mapping(
            {
                "model": "gpt2",
                "data": {"sequence_length": 256, "global_batch": BATCH},
                "cluster": {"node": "dgx-a100"},
                "strategy": strategy,
            }
        )
    )


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_printed_strategy_can_be_pasted_back(name: str) -> None:
    """What made the figures must be complete, or no one can make them again."""
    first = simulated(STRATEGIES[name])
    printed = dict(first.result.strategy)
    printed.pop("preset")  # for people; a tree has none

    assert simulated(printed).trace.graph.equal(first.trace.graph)


@pytest.mark.parametrize(
    "load", [{"expert_imbalance": 1.5}, {"expert_imbalance": {"spread": 0.25, "seed": 3}}]
)
def test_a_load_of_experts_can_be_pasted_back(load: dict[str, Any]) -> None:
    """A capacity goes with it."""
    job = {
        "model": "qwen3-30b-a3b",
        "data": {"sequence_length": 256, "global_batch": BATCH},
        "cluster": {"node": "dgx-h100"},
        "traits": {"moe_dropless": False},
    }
    first = simulate(job_from_mapping(job | {"strategy": {"ep": 8, "expert_capacity": 1.2} | load}))
    printed = dict(first.result.strategy)
    printed.pop("preset")
    again = simulate(job_from_mapping(job | {"strategy": printed}))

    assert again.trace.graph.equal(first.trace.graph)
    assert any("are dropped" in note for note in again.result.assumed)


def test_an_imbalance_of_a_dense_model_is_a_warning() -> None:
    """The model is known only when it is built."""
    job = {
        "model": "gpt2",
        "data": {"sequence_length": 256, "global_batch": BATCH},
        "cluster": {"node": "dgx-a100"},
        "strategy": {"ep": 1, "tp": 2, "expert_imbalance": 1.5},
    }

    assert simulate(job_from_mapping(job)).warnings == (
        "strategy.expert_imbalance: has no effect: gpt2 has no experts",
    )


def test_a_bucket_can_be_pasted_back() -> None:
    """Sizes in a job file carry a unit."""
    tree = {"mesh": {"dp": 8}, "tree": {"": {"compute": {"batch": "dp"}}}, "bucket": "3 MB"}
    tree["schedule"] = {"name": "1f1b", "micro_batches": 2}
    first = simulated(tree)
    printed = dict(first.result.strategy)
    printed.pop("preset")

    assert printed["bucket"] == "3000000 B"
    assert simulated(printed).trace.graph.equal(first.trace.graph)
