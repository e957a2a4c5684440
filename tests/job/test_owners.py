"""Operators that a strategy tree puts whole on one rank."""

from __future__ import annotations

from typing import Any

import pytest

from wattree.errors import StrategyError
from wattree.job import Job, job_from_mapping
from wattree.predict import simulate

SHAPE = {"layers": 2, "hidden": 512, "heads": 8, "vocab": 4096, "ffn": 2048}


def job(tree: dict[str, Any], model: object = None, **data: int) -> Job:
    """Return a job on four devices that see samples of their own, but for what a tree says."""
    return job_from_mapping(
        {
            "model": model or {"transformer": SHAPE},
            "data": {"global_batch": 16, **data},
            "cluster": {"node": "dgx-a100", "nodes": 1},
            "place": {"devices": "0-3"},
            "strategy": {
                "mesh": {"dp": 4},
                "schedule": {"micro_batches": 1},
                "tree": {"": {"compute": {"batch": "dp"}}, **tree},
            },
        }
    )


def owned(*paths: str) -> dict[str, Any]:
    """Return the choice that one rank has these modules whole."""
    return {path: {"compute": {"batch": [], "owner": "dp"}} for path in paths}


def work_and_time(tree: dict[str, Any], model: object = None, **data: int) -> tuple[float, float]:
    """Return the work of all ranks and the time of a step. [FLOP, s]"""
    found = simulate(job(tree, model, **data))
    graph = found.trace.graph
    streams = graph.stream_ids[graph.stream_offsets[:-1]]
    work = (graph.flop * graph.class_ranks[graph.stream_class[streams]]).sum()
    return float(work), found.result.step_time_s


@pytest.mark.parametrize("path", ["layers.1.mlp", "layers.1", "head.logits", "embedding"])
def test_one_rank_does_the_work_of_all(path: str) -> None:
    """Matmuls and attention too: the same work in more time."""
    work, time_s = work_and_time(owned(path), sequence_length=256)
    spread_work, spread_s = work_and_time({}, sequence_length=256)

    assert work == pytest.approx(spread_work)
    assert time_s > spread_s


def test_one_rank_does_the_work_of_all_experts() -> None:
    """Experts that no axis splits get all tokens."""
    shape = {"transformer": {**SHAPE, "experts": 8, "top_k": 2}}
    work, time_s = work_and_time(owned("layers.1.moe.experts.up"), shape, sequence_length=256)
    spread_work, spread_s = work_and_time({}, shape, sequence_length=256)

    assert work == pytest.approx(spread_work)
    assert time_s > spread_s


def test_what_ends_a_block_may_be_owned() -> None:
    """What it leaves to others is in their memory, though nothing of the block computes with it."""
    found = simulate(job(owned("embedding.embedding.dropout"), "t5-small", sequence_length=256))

    assert found.result.step_time_s > 0


def test_one_rank_runs_layers_of_captured_models() -> None:
    """Whose matmuls and convolutions are those of a library."""
    work, time_s = work_and_time(owned("layer1.0", "fc"), "resnet18")
    spread_work, spread_s = work_and_time({}, "resnet18")

    assert work == pytest.approx(spread_work)
    assert time_s > spread_s


def test_an_owner_beside_split_experts_is_refused() -> None:
    """Of which every rank has as many, and the owner's work is not theirs."""
    shape = {**SHAPE, "experts": 8, "top_k": 2}
    split = {"layers.*.moe.experts": {"compute": {"batch": [], "expert": "dp"}}}
    tree = {**owned("head.final_norm"), **split}

    with pytest.raises(StrategyError, match="final_norm has an owner and experts are split"):
        simulate(job(tree, {"transformer": shape}, sequence_length=256))
