"""What `plan` lists for a software family, the framework's own files can say."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

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
