"""The Trainer and Accelerate are predicted with the engine that runs a strategy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import wattree
from wattree.cost import SOFTWARE, families, load_calibration
from wattree.frameworks import FRAMEWORKS
from wattree.frameworks.concrete import concrete_job
from wattree.frameworks.export import recipe_files
from wattree.job import job_from_mapping
from wattree.predict import setting_of
from wattree.strategy import StrategyOptions

ENGINES = ("hf-trainer", "accelerate")
OFFLOADED = {"offload": {"optimizer": "host"}}


def job(software: str, strategy: Any, **more: Any) -> wattree.Job:
    """Return a job on a node of eight devices."""
    return job_from_mapping(
        {
            "model": "llama-3.2-1b",
            "data": {"sequence_length": 1024, "global_batch": 16},
            "cluster": {"node": "dgx-a100"},
            "software": software,
            "strategy": strategy,
            **more,
        }
    )


def by_category(software: str, strategy: dict[str, Any]) -> dict[str, float]:
    """Return what parameters, gradients and optimizer take."""
    found = wattree.simulate(job(software, strategy)).result.memory.by_category
    return {name: found[name] for name in ("parameters", "gradients", "optimizer")}


@pytest.mark.parametrize("software", ENGINES)
@pytest.mark.parametrize(
    "strategy",
    [
        {"sharding": "zero1"},
        {"sharding": "zero2"},
        {"sharding": "zero2", **OFFLOADED},
        {"sharding": "zero3", **OFFLOADED},
        {"sharding": "zero3", "dp": 4, "cp": 2, "context": "ulysses"},
        {"sharding": "zero3", "bucket": "500 MB"},  # which FSDP2 has none of
    ],
    ids=str,
)
def test_what_deepspeed_shards_is_stored_as_it_stores_it(
    software: str, strategy: dict[str, Any]
) -> None:
    """In fp32, 7B would not fit on cards of 24 GB, for which ZeRO-Offload is made."""
    whole = {"dp": 8, "micro_batch": 1, "recompute": "full", **strategy}
    assert by_category(software, whole) == by_category("deepspeed", whole)

    concrete = concrete_job(job(software, whole))
    files, _ = recipe_files(FRAMEWORKS[software], concrete)
    assert '"bf16": {' in files["ds_config.json"]
    assert any(line.startswith("DeepSpeed runs") for line in concrete.job.assumed)


@pytest.mark.parametrize(
    ("software", "more"),
    [("accelerate", {}), ("hf-trainer", {"full_table_state": True, "clips_gradients": True})],
)
def test_deepspeed_under_another_name_is_deepspeed(software: str, more: dict[str, Any]) -> None:
    """In all of its traits, of whatever release of what starts it."""
    engine = families.ENGINES[software]["DEEPSPEED"]
    names = {"name": software, "title": SOFTWARE[software].title}
    expected = replace(SOFTWARE["deepspeed"], **names, **more)
    assert SOFTWARE[software].with_traits(engine) == expected

    old = job(software, {"dp": 8, "sharding": "zero2"}, released="2024-06")
    assert setting_of(old, load_calibration()).software.shard_copies == "none"
    assert not any("shard_copies" in each for each in old.assumed)


@pytest.mark.parametrize("software", ENGINES)
@pytest.mark.parametrize("sharding", ["none", "zero3", "hybrid"])
def test_ddp_and_fsdp_store_parameters_in_fp32(software: str, sharding: str) -> None:
    """And traits that a job states hold for any engine."""
    strategy = {"dp": 4, "fsdp": 2} if sharding == "hybrid" else {"dp": 8}
    given = {**strategy, "sharding": sharding}
    settings = [
        setting_of(job(software, given, traits=traits), load_calibration())
        for traits in ({}, {"parameter_bytes": 2})
    ]
    assert [each.software.parameter_bytes for each in settings] == [4.0, 2.0]


@pytest.mark.parametrize("software", ENGINES)
def test_plan_and_simulate_have_the_same_engine(software: str) -> None:
    """A plan screens strategies of all engines in one space."""
    whole = job(software, "auto")
    found = wattree.plan(whole, top=20)
    shardings = set()
    for entry in found.ranked:
        options = entry.options
        assert isinstance(options, StrategyOptions)
        shardings.add(options.memory.sharding)
        again = wattree.simulate(replace(whole, strategy=options)).result
        assert again.memory.peak_bytes == entry.result.memory.peak_bytes
    assert {"zero2", "zero3"} <= shardings
