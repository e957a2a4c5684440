"""Estimates of steps in which traffic takes the time, against their simulation."""

from __future__ import annotations

from typing import Any

import pytest

import wattree
from wattree.errors import StrategyError
from wattree.job import Job, job_from_mapping
from wattree.predict.checked import checked

#: Its tables of tokens are 18 times as large as one of its layers.
LARGE_VOCABULARY = {
    "transformer": {"layers": 3, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 256000}
}


def job(
    model: Any, node: str, nodes: int, batch: int, strategy: dict[str, Any], **keys: Any
) -> Job:
    """Return a job with short sequences, in whose steps traffic counts."""
    cluster = {"node": node, "nodes": nodes, **keys.pop("cluster", {})}
    length = {} if model in ("dlrm-small", "resnet50") else {"sequence_length": 512}
    return job_from_mapping(
        {
            "model": model,
            "data": {"global_batch": batch, **length},
            "cluster": cluster,
            "strategy": {"micro_batch": 1, **strategy},
            **keys,
        }
    )


#: What is estimated, and by how much its time may differ.
STEPS: dict[str, tuple[Job, float]] = {
    "reductions of a large first block": (
        job(LARGE_VOCABULARY, "4x-a6000", 1, 16, {"sharding": "zero1"}, software="generic"),
        0.01,
    ),
    "one bucket of small blocks": (
        job("pythia-14m", "8x-l40s", 2, 16, {"sharding": "none"}, software="pytorch"),
        0.01,
    ),
    "collectives of blocks and reductions on the same ports": (
        job("opt-1.3b", "8x-t4", 1, 12, {"tp": 2, "sharding": "zero2"}, software="torchtitan"),
        0.015,
    ),
    "gathers of updated parameters, stage after stage": (
        job("gpt2-xl", "8x-l40s", 1, 16, {"pp": 4, "schedule": "1f1b", "sharding": "zero1"},
            software="paddle"),
        0.05,
    ),
    "reductions between groups alongside gathers within them": (
        job("gpt2-xl", "8x-v100-pcie", 2, 48, {"sharding": "hybrid", "fsdp": 8},
            software="pytorch", cluster={"fabric": "ethernet-25g"}),
        0.13,
    ),
    "gathers that wait, on slow links": (
        job("opt-1.3b", "8x-rtx-2080-ti", 2, 16,
            {"tp": 2, "sharding": "zero3", "prefetch": {"forward": 0, "backward": 0}},
            software="pytorch-fsdp-compiled"),
        0.12,
    ),
    "frozen blocks that have no backward": (
        job({"name": "bloom-560m", "lora": {"rank": 16}}, "8x-rtx-4090", 2, 16,
            {"tp": 4, "sharding": "zero3"}, software="megatron-lm"),
        0.08,
    ),
    "large tables among small blocks": (
        job("dlrm-small", "gh200-quad", 2, 256, {"sharding": "zero3", "micro_batch": 32}),
        0.07,
    ),
    "statistics of norms over all replicas": (
        job("resnet50", "8x-a100", 4, 1024, {"micro_batch": 32, "sync_batch_norm": True},
            software="pytorch", cluster={"fabric": "ethernet-25g"}),
        0.01,
    ),
}  # fmt: skip


def test_traffic_takes_as_long_as_in_a_simulation() -> None:
    """It waits for its block and for ports, and what comes last is not hidden."""
    wrong = {}
    for name, (each, most) in STEPS.items():
        found, executed = wattree.estimate(each), wattree.simulate(each).result
        if abs(found.step_time_s / executed.step_time_s - 1.0) > most:
            wrong[name] = found.step_time_s, executed.step_time_s
        if abs(found.memory.peak_bytes / executed.memory.peak_bytes - 1.0) > 0.001 + 0.1 * most:
            wrong[f"{name}, memory"] = found.memory.peak_bytes, executed.memory.peak_bytes

    assert not wrong


@pytest.mark.parametrize(
    ("strategy", "keys", "words"),
    [
        ({"cp": 2, "context": "ring"}, {"software": "jax"}, "keeps the whole score matrix"),
        ({"processes_per_device": 2}, {"software": "generic"}, "a mi355x does not have"),
    ],
)
def test_what_simulate_refuses_is_refused_at_once(
    strategy: dict[str, Any], keys: dict[str, Any], words: str
) -> None:
    """An estimate of a step that cannot run helps no one."""
    refused = job("gpt2", "8x-mi355x", 1, 16, strategy, **keys)
    for command in (wattree.simulate, wattree.estimate, checked):
        with pytest.raises(StrategyError, match=words):
            command(refused)
