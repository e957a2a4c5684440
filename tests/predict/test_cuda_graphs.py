"""`cuda_graphs: full` and `fused_convolutions`: steps whose kernels no host launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import wattree
from wattree.capture import load_model
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.cost import SOFTWARE, Calibration, load_calibration
from wattree.errors import JobError
from wattree.job import Job, job_from_mapping
from wattree.lowering.host_stretch import REPLAYED
from wattree.predict import setting_of
from wattree.strategy import StrategyOptions

GRAPHED = {"cuda_graphs": "full"}


def job(samples: int, **traits: object) -> Job:
    """ResNet-50 on one node of H100, `samples` on each."""
    given: Mapping[str, Any] = {
        "model": "resnet-50",
        "data": {"global_batch": 8 * samples},
        "cluster": {"node": "dgx-h100"},
        "software": "pytorch-ngc",
        "precision": "fp16",
        "strategy": {"preset": "ddp", "dp": 8, "micro_batch": samples},
        "traits": dict(traits),
    }
    return job_from_mapping(given)


def screened_s(asked: Job, calibration: Calibration) -> float:
    """Return the step in closed form. [s]"""
    options = asked.strategy
    assert isinstance(options, StrategyOptions)
    degrees = Degrees.of([options], asked.data.global_batch)
    return float(estimate(setting_of(asked, calibration), options, degrees).step_time_s[0])


def step_s(samples: int, **traits: object) -> float:
    """Return the predicted step. [s]"""
    return wattree.simulate(job(samples, **traits)).result.step_time_s


def test_a_graph_frees_small_steps_of_the_host() -> None:
    """Eager launches bind where there is little to do, which is said, and hardly elsewhere."""
    eager, graphed = (
        [wattree.simulate(job(n, **traits)).result for n in (4, 512)] for traits in ({}, GRAPHED)
    )
    small, large = (
        one.step_time_s / other.step_time_s for one, other in zip(eager, graphed, strict=True)
    )
    late = [
        any("wait" in line and "for their host" in line for line in result.assumed)
        for result in (*eager, *graphed)
    ]

    assert small > 3.0
    assert large == pytest.approx(1.0, abs=0.02)
    assert late == [True, False, False, False]


@pytest.mark.parametrize(("compiled", "fewest"), [(False, 350), (True, 250)])
def test_what_a_graph_starts_adds_to_the_work_of_each_kernel(
    *, compiled: bool, fewest: int
) -> None:
    """The step grows with the constant by the number of kernels, merged or not, at any batch."""
    shipped, name, more_s = load_calibration(), "general.graph_start_s", 1e-6
    slower = shipped.replaced({name: shipped.constants[name].value + more_s})
    grown = []
    for samples in (16, 64):
        graphed = job(samples, **GRAPHED, compiled=compiled)
        before, after = (screened_s(graphed, each) for each in (shipped, slower))
        grown.append((after - before) / more_s)

    assert grown[0] == pytest.approx(grown[1], rel=1e-2)
    assert fewest < grown[0] < 600  # 53 convolutions, norms and activations, forward and backward


@pytest.mark.parametrize("extra", [{}, {"compiled": True}])
def test_a_replayed_step_does_not_wait_for_its_host(extra: dict[str, Any]) -> None:
    """What a family needs for each step beyond its operators is no part of a graph."""
    shipped, name = load_calibration(), "family.pytorch-ngc.step_overhead_s"
    slower = shipped.replaced({name: 1.0})
    eager, graphed = job(64, **extra), job(64, **extra, **GRAPHED)

    assert screened_s(eager, slower) > screened_s(eager, shipped) + 0.9
    assert screened_s(graphed, slower) == screened_s(graphed, shipped)


@pytest.mark.parametrize("extra", [{}, {"compiled": True, "fused_convolutions": True}])
def test_screening_knows_graphs(extra: dict[str, Any]) -> None:
    """The closed form has the step that is executed, with kernels of graphs too."""
    graphed = job(64, **GRAPHED, **extra)
    played_s = wattree.simulate(graphed).result.step_time_s

    assert screened_s(graphed, load_calibration()) == pytest.approx(played_s, rel=0.02)


def test_convolutions_that_normalise_save_passes_over_memory() -> None:
    """Forward of the norms between convolutions goes, FLOP stay."""
    compiled = {**GRAPHED, "compiled": True, "channels_last": True}
    plain, merged = (step_s(256, **compiled, fused_convolutions=on) for on in (False, True))

    assert 0.6 < merged / plain < 0.9


def test_only_compiled_kernels_merge_with_convolutions() -> None:
    """The setting would have no effect, which is said."""
    with pytest.raises(JobError, match=r"traits\.fused_convolutions.*add 'compile: true'"):
        step_s(64, fused_convolutions=True)


def test_no_host_of_a_graph_waits_for_the_sizes_of_experts() -> None:
    """Layers of experts end each routing on the host, unless the whole step is one graph."""
    given: Mapping[str, Any] = {
        "model": "qwen3-30b-a3b",
        "data": {"global_batch": 8, "sequence_length": 4096},
        "cluster": {"node": "dgx-h200"},
        "software": "megatron-core",
        "strategy": {"preset": "zero1", "ep": 8, "recompute": "none"},
    }

    def estimated_s(**traits: object) -> float:
        return wattree.estimate(job_from_mapping({**given, "traits": traits})).step_time_s

    dropping = estimated_s(cuda_graphs="full", moe_dropless=False)

    assert estimated_s(cuda_graphs="full") == dropping
    assert estimated_s(cuda_graphs="partial") > 1.01 * dropping


LANGUAGE = {"megatron-core", "torchtitan", "llm-foundry", "pytorch", "hf-trainer", "jax"}


def language_s(software: str, model: str, *, micro_batch: int, **traits: object) -> float:
    """Return the estimated step of 64 short samples on one node. [s]"""
    given: Mapping[str, Any] = {
        "model": model,
        "data": {"global_batch": 64, "sequence_length": 512},
        "cluster": {"node": "dgx-a100"},
        "software": software,
        "strategy": {"preset": "zero1", "micro_batch": micro_batch, "recompute": "none"},
        "traits": traits,
    }
    return wattree.estimate(job_from_mapping(given)).step_time_s


@pytest.mark.parametrize("model", ["gpt2", "llama-3.2-1b", "qwen1.5-moe-a2.7b"])
@pytest.mark.parametrize("software", sorted(LANGUAGE))
def test_graphs_never_lengthen_a_step_of_language(software: str, model: str) -> None:
    """Rates of training have the time between kernels in them: replaying adds none."""
    for micro_batch in (1, 8):
        none, router, partial, full = (
            language_s(software, model, micro_batch=micro_batch, cuda_graphs=graphs)
            for graphs in ("none", "router", "partial", "full")
        )
        assert full <= partial <= router <= none


@pytest.mark.parametrize("software", sorted(LANGUAGE))
def test_every_micro_batch_is_launched(software: str) -> None:
    """The same samples in more micro-batches take longer, most of all where Python launches."""
    one, four, eight = (language_s(software, "gpt2", micro_batch=size) for size in (8, 2, 1))
    eager = not SOFTWARE[software].compiled

    assert one < four < eight
    assert (eight - one) / 7 > (0.009 if eager else 0.0)  # at least 12 layers of 25 kernels


@pytest.mark.parametrize("model", ["vit-s-16", "gpt2", "llama-3.2-1b", "qwen1.5-moe-a2.7b"])
def test_graphs_of_parts_shorten_a_step_or_say_that_they_do_not(model: str) -> None:
    """Parts of captured models have names of their own; those of the catalog's layers are known."""
    given: Mapping[str, Any] = {
        "model": model,
        "data": {"global_batch": 8} | ({} if "vit" in model else {"sequence_length": 128}),
        "cluster": {"node": "dgx-h100"},
        "software": "megatron-core",
        "strategy": "ddp",
    }
    partial, none = (
        wattree.simulate(job_from_mapping({**given, "traits": {"cuda_graphs": graphs}}))
        for graphs in ("partial", "none")
    )
    is_idle = any("partial has no effect" in line for line in partial.warnings)

    assert is_idle == (model == "vit-s-16")
    assert (partial.result.step_time_s < 0.95 * none.result.step_time_s) == (not is_idle)


def test_parts_that_are_replayed_are_those_of_layers() -> None:
    """A renamed part of the catalog's layers would be launched without a word."""
    models = map(load_model, ("qwen1.5-moe-a2.7b", "gemma-2-9b"))  # with norms after attention
    paths = [operator.path for model in models for operator in model.operators]

    assert all(any(path.startswith(part) for path in paths) for part in REPLAYED["partial"])
