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
from wattree.lowering.offered import model_offer
from wattree.predict import setting_of
from wattree.search.limits import Limits
from wattree.search.space import enumerate_space
from wattree.strategy import StrategyOptions


@pytest.mark.parametrize(
    ("framework", "model", "node"),
    [
        ("torchtitan", "llama-3.1-8b", "dgx-h100"),
        ("torchtitan", "qwen3-14b", "dgx-h100"),  # pipelines of it since 0.3
        ("accelerate", "llama-3.1-8b", "dgx-h100"),
        ("hf-trainer", "llama-3.1-8b", "dgx-h100"),
        ("deepspeed", "yi-34b", "dgx-a100"),
        ("deepspeed", "mixtral-8x7b", "dgx-h100"),
        ("megatron-lm", "qwen2.5-3b", "dgx-h100"),
        ("megatron-bridge", "qwen3-30b-a3b", "dgx-h100"),
        ("megatron-bridge", "gpt-oss-20b", "dgx-h100"),  # whose experts have biases
        ("megatron-bridge", "nemotron-h-8b", "dgx-h100"),  # equal stages, none virtual
        ("maxtext", "gemma-2-9b", "tpu-v5p-host"),
        ("maxtext", "mixtral-8x7b", "tpu-v6e-host"),
        ("maxtext", "llama-2-13b", "dgx-h200"),
    ],
)
def test_software_starts_what_is_planned_for_it(
    framework: str, model: str, node: str, *, soaking: bool
) -> None:
    """Once the best strategy was one that export refused: rings of ranks without FSDP.

    What needs nothing of the software, one way of data parallelism, is among what is listed.
    """
    writer = FRAMEWORKS[framework]
    job = job_from_mapping(
        {
            "model": model,
            "data": {"sequence_length": 2048, "global_batch": 64},
            "cluster": {"node": node, "nodes": 2},
            "software": writer.software[0],
        }
    )
    setting = setting_of(job, load_calibration())
    offer = model_offer(job.software, setting.model, job, compiled=False)
    listed = list(enumerate_space(setting, limits=Limits(offer=offer)))
    refused = {}
    for options in random.Random(5).sample(listed, min(100 if soaking else 15, len(listed))):
        try:
            recipe_files(writer, concrete_job(replace(job, strategy=options)))
        except JobError as error:
            refused[str(options.present()), options.memory.sharding] = str(error)

    assert refused == {}
    devices = job.cluster.devices
    for axis in ("dp", *(("pp",) if offer is not None and "pp" in offer.axes else ())):
        wide = [options for options in listed if options.value(axis) > 1]
        assert any(options.tp == 1 for options in wide), axis
    assert any(options.dp * options.fsdp == devices for options in listed)
    if model == "llama-3.1-8b" and framework == "torchtitan":
        assert any(map(_alone, listed)), "one replica needs no sharding"


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
    limits = Limits(micro_batches=(1,), recomputations=("none",), refined=False)
    listed = wattree.plan(job, top=50, limits=limits)

    assert list(refused) == axes
    assert all(model in words for words in refused.values())
    assert {f"{axis} above 1" for axis in axes} <= set(listed.not_offered)
    ranked = [options.present() for options in (each.options for each in listed.ranked)]
    assert not any(present[axis] for present in ranked for axis in axes)


def test_experts_with_biases_are_not_split_over_tensor_ranks_by_megatron() -> None:
    """Its own configuration refuses it: the bias would be added by every rank."""
    job = job_from_mapping(
        {
            "model": "gpt-oss-20b",
            "data": {"sequence_length": 2048, "global_batch": 64},
            "cluster": {"node": "dgx-h100"},
            "software": "megatron-core",
        }
    )
    setting = setting_of(job, load_calibration())
    offer = model_offer(job.software, setting.model, job, compiled=False)
    wide = [each for each in enumerate_space(setting, limits=Limits(offer=offer)) if each.tp > 1]

    assert wide
    assert all(each.parallelism.expert_over_tensor for each in wide)
