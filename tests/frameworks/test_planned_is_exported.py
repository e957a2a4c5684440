"""What `plan` lists for a software family, the framework's own files can say."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import wattree
from wattree.cost import load_calibration
from wattree.errors import JobError
from wattree.frameworks import FRAMEWORKS
from wattree.frameworks.concrete import concrete_job
from wattree.frameworks.export import recipe_files
from wattree.job import job_from_mapping
from wattree.job.offers import offer_of
from wattree.lowering.setting import setting_of
from wattree.search.limits import Limits
from wattree.search.space import enumerate_space
from wattree.strategy import StrategyOptions


@pytest.mark.parametrize("software", ["torchtitan", "accelerate", "hf-trainer"])
def test_software_starts_what_is_planned_for_it(software: str) -> None:
    """Once the best strategy was one that export refused: rings of ranks without FSDP."""
    job = job_from_mapping(
        {
            "model": "llama-3.1-8b",
            "data": {"sequence_length": 8192, "global_batch": 64},
            "cluster": {"node": "dgx-h100", "nodes": 2},
            "software": software,
        }
    )
    limits = Limits(offer=offer_of(software))
    space = enumerate_space(setting_of(job, load_calibration()), limits=limits)
    listed = list(space)
    refused = {}
    for options in random.Random(5).sample(listed, 200):
        try:
            recipe_files(FRAMEWORKS[software], concrete_job(replace(job, strategy=options)))
        except JobError as error:
            refused[str(options.present()), options.memory.sharding] = str(error)

    assert refused == {}
    assert software != "torchtitan" or any(map(_alone, listed)), "one replica needs no sharding"


def _alone(options: StrategyOptions) -> bool:
    return options.memory.sharding == "none" and options.tp * options.pp == 16


@pytest.mark.parametrize(
    ("model", "axes"), [("gemma-2-9b", ["cp"]), ("gpt-j-6b", ["tp", "cp"]), ("gpt2", ["tp"])]
)
def test_axes_that_a_models_modules_lack_are_neither_listed_nor_written(
    model: str, axes: list[str]
) -> None:
    """The Trainer has context parallelism on SDPA alone, and tensor parallelism by a plan."""
    job = job_from_mapping(
        {
            "model": model,
            "data": {"sequence_length": 1024, "global_batch": 64},
            "cluster": {"node": "dgx-h100"},
            "software": "hf-trainer",
        }
    )
    refused = {}
    for axis in ("tp", "cp"):
        context = "gather" if axis == "cp" else "overlapped"
        options = StrategyOptions(dp=4, sharding="zero3", context=context, micro_batch=1)
        options = options.changed(**{axis: 2})
        try:
            recipe_files(FRAMEWORKS["hf-trainer"], concrete_job(replace(job, strategy=options)))
        except JobError as error:
            refused[axis] = str(error)
    listed = wattree.plan(job, top=50)

    assert list(refused) == axes
    assert all(model in words for words in refused.values())
    assert {f"{axis} above 1" for axis in axes} <= set(listed.not_offered)
    ranked = [options.present() for options in (each.options for each in listed.ranked)]
    assert not any(present[axis] for present in ranked for axis in axes)
