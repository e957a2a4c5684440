"""One strategy by the closed form, against its simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import wattree
from wattree.closed_form import strategies as closed_form
from wattree.cost import load_calibration
from wattree.errors import JobError, StrategyError
from wattree.job import Job, job_from_mapping
from wattree.predict import StepEstimate, recent_jobs, setting_of
from wattree.strategy import SHARDINGS, StrategyOptions

STRATEGIES: dict[str, dict[str, Any]] = {
    "pipeline": {"tp": 2, "pp": 4, "micro_batch": 1, "sharding": "zero1"},
    "sharded": {"fsdp": 8, "micro_batch": 1, "sharding": "zero3", "recompute": "full"},
    "interleaved": {"tp": 2, "pp": 4, "micro_batch": 1, "virtual_stages": 2},
}


def job(strategy: dict[str, Any] | str, **keys: str) -> Job:
    """Return a job on one node."""
    return job_from_mapping(
        {
            "model": "llama-3.1-8b",
            "data": {"sequence_length": 4096, "global_batch": 32},
            "cluster": {"node": "dgx-h100", "site": "sweden"},
            "strategy": strategy,
            **keys,
        }
    )


def test_figures_are_those_of_a_simulation_within_the_closed_forms_error() -> None:
    """Whoever asks for milliseconds gets the same names, and nearly the same figures."""
    for name, strategy in STRATEGIES.items():
        found = wattree.estimate(job(strategy)).as_json()
        executed = wattree.simulate(job(strategy)).result.as_json()
        for key in ("step_time_s", "samples_per_s", "tokens_per_s", "cost_usd"):
            assert found[key] == pytest.approx(executed[key], rel=0.03), (name, key)
        for key in ("average_power_w", "peak_power_w", "carbon_gco2e"):
            assert found[key] == pytest.approx(executed[key], rel=0.06), (name, key)
        assert found["energy_j"]["total"] == pytest.approx(executed["energy_j"]["total"], rel=0.04)
        run, executed_run = found["run_step"], executed["run_step"]
        assert run["time_s"] == pytest.approx(executed_run["time_s"], rel=0.03), name
        assert run["goodput"] == pytest.approx(executed_run["goodput"], rel=1e-4), name
        assert run["assumed"] == executed_run["assumed"]
        memory = executed["memory"]
        assert found["memory"]["peak_bytes"] == pytest.approx(memory["peak_bytes"], rel=0.02), name
        assert found["memory"]["fits"] == memory["fits"], name


def test_a_job_asked_about_again_has_the_same_figures() -> None:
    """What is kept from other strategies of a job changes no figure of this one."""

    def found(software: str, sharding: str) -> StepEstimate:
        strategy = {"sharding": sharding, "micro_batch": 1, "recompute": "none"}
        return wattree.estimate(job(strategy, model="llama-3.2-1b", software=software))

    alone, after = {}, {}
    for software in ("hf-trainer", "pytorch", "torchtitan", "deepspeed", "generic"):
        for sharding in SHARDINGS:
            recent_jobs._RECENT.clear()
            alone[software, sharding] = found(software, sharding)
            for other in SHARDINGS:
                after[software, sharding, other] = found(software, other)

    wrong = [key for key, each in after.items() if each != alone[key[0], key[2]]]
    assert not wrong


def test_what_the_closed_form_does_not_know_is_refused() -> None:
    """A figure of another strategy than the one that was asked about would be wrong."""
    with pytest.raises(StrategyError, match="use simulate instead"):
        wattree.estimate(job({"preset": "ddp", "offload": {"optimizer": "host"}}))
    with pytest.raises(StrategyError, match="found a tree of modules"):
        wattree.estimate(wattree.load_job("examples/llama-3.1-8b-tree.yaml"))


def test_a_strategy_that_does_not_fit_is_refused() -> None:
    """As by simulate: 8 layers of a mesh that the cluster has not."""
    with pytest.raises(StrategyError, match="micro-batch"):
        wattree.estimate(job({"tp": 2, "dp": 4, "micro_batch": 5}))


def test_a_job_without_a_strategy_is_refused() -> None:
    """It is for one strategy; plan finds one."""
    with pytest.raises(JobError, match="expected a strategy to estimate"):
        wattree.estimate(job("auto"))


def test_what_a_job_leaves_open_is_what_makes_it_fastest() -> None:
    """Few micro-batches in many stages: users pay with recomputation for virtual stages."""
    job = wattree.job_from_mapping(
        {
            "model": "llama-3.1-405b",
            "data": {"sequence_length": 8192, "global_batch": 512},
            "cluster": {"node": "dgx-h100", "nodes": 256},
            "software": "megatron-core",
            "strategy": {"tp": 8, "pp": 16, "dp": 16, "micro_batch": 1, "sequence_parallel": True},
        }
    )
    predicted = wattree.simulate(job)
    found = predicted.result
    assert isinstance(job.strategy, StrategyOptions)
    plain = replace(job, strategy=job.strategy.changed(schedule="1f1b"), left_open=())

    assert found.strategy["schedule"]["virtual_stages"] > 1
    assert isinstance(predicted.strategy, StrategyOptions)  # whose words head the answer
    assert predicted.strategy.pipeline.virtual_stages > 1
    assert found.step_time_s < wattree.simulate(plain).result.step_time_s


def test_what_a_job_states_is_no_assumption() -> None:
    """`recompute: selective` is one kind for most software, and was listed as assumed."""
    stated = job(STRATEGIES["pipeline"] | {"recompute": "selective"}, software="megatron-core")

    assert not any("recompute" in said for said in wattree.simulate(stated).result.assumed)


def test_what_memory_decides_says_why() -> None:
    """Offload is for links of the host's speed; a full device may not run, and a knob moves two."""
    small = "dgx-h100", 8
    cases = [
        (*small, 98304, "recompute none", "that fits, with less than 5 % of the memory free"),
        (*small, 131072, "recompute block_2", "that fits (recompute none does not; to compare"),
        ("gb200-nvl72", 2, 131072, "recompute none, offload activations of layers 24", "that fits"),
        ("tpu-v4-host", 1, 8192, "recompute full", "that fits (recompute none does not; to"),
    ]
    for node, tp, tokens, what, why in cases:
        software, more = ("jax", {"sharding": "zero3"}) if tp == 1 else ("megatron-core", {})
        asked = job_from_mapping(
            {
                "model": "llama-3.1-8b",
                "data": {"sequence_length": tokens, "global_batch": 8},
                "cluster": {"node": node, "nodes": 2 if more else 1},
                "software": software,
                "strategy": {"tp": tp, "micro_batch": 1, **more},
            }
        )
        assumed = setting_of(asked, load_calibration()).job.assumed
        said = f"{what}: the fastest usual setting of {software} {why}"
        assert any(said in each for each in assumed), (said, assumed)


def test_a_preset_leaves_to_software_what_it_does_not_set() -> None:
    """`preset: fsdp` means the sharding; torchtitan's users recompute with it, too."""
    written = ("fsdp", {"preset": "fsdp"}, {"dp": 8, "sharding": "zero3"}, {"fsdp": 8})
    assumed = [
        setting_of(job(each, software="torchtitan"), load_calibration()).job.assumed
        for each in written
    ]

    assert any("recompute selective_operator" in each for each in assumed[0])
    assert assumed == [assumed[0]] * len(written)


def test_a_strategy_that_is_refused_leaves_the_others_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strategies are estimated together; one without a closed form must not take all away."""
    whole = closed_form.estimate

    def refusing(setting: Any, options: Any, degrees: Any, **known: Any) -> Any:
        if 4 in degrees.virtual_stages:
            raise StrategyError({"virtual_stages": "found 4"})
        return whole(setting, options, degrees, **known)

    monkeypatch.setattr(closed_form, "estimate", refusing)
    job = job_from_mapping(
        {
            "model": "llama-3.1-8b",
            "data": {"sequence_length": 4096, "global_batch": 32},
            "cluster": {"node": "dgx-h100"},
            "software": "generic",
            "strategy": {"tp": 2, "pp": 4, "micro_batch": 1, "sequence_parallel": True},
        }
    )

    assert wattree.simulate(job).result.strategy["schedule"]["virtual_stages"] in {2, 8}


def test_a_vocabulary_that_does_not_divide_costs_what_a_padded_one_does() -> None:
    """All training software pads it, or gives the last rank fewer rows."""
    small = {"layers": 2, "hidden": 1024, "heads": 16, "ffn": 4096}
    odd, padded = (
        wattree.simulate(
            wattree.job_from_mapping(
                {
                    "model": {"transformer": {**small, "vocab": vocab}},
                    "data": {"sequence_length": 512, "global_batch": 8},
                    "cluster": {"node": "dgx-a100", "nodes": 1},
                    "strategy": {"tp": 4, "dp": 2},
                }
            )
        ).result
        for vocab in (32_001, 32_004)
    )

    assert odd.step_time_s == pytest.approx(padded.step_time_s, rel=1e-3)
    assert odd.memory.peak_bytes == pytest.approx(padded.memory.peak_bytes, rel=1e-3)


def test_power_with_pue_times_time_is_the_energy() -> None:
    """What a reader checks first on a screen that shows all of them."""
    asked = job(STRATEGIES["sharded"])
    for found in (wattree.estimate(asked), wattree.simulate(asked).result):
        spent_j = found.average_power_w * (found.pue or 0.0) * found.step_time_s
        assert found.pue == asked.cluster.site.pue
        assert spent_j == pytest.approx(found.energy_j.total, rel=1e-9)


def test_layouts_that_ran_fit_under_unknown_software() -> None:
    """InternEvo: gradients in the 16 bits of the model (github InternLM/InternEvo, training)."""
    sizes = {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008, "vocab": 103168}
    job = job_from_mapping(
        {
            "model": {"transformer": {**sizes, "gated": True, "norm": "rms"}},
            "data": {"sequence_length": 2048, "global_batch": 64},
            "cluster": {"node": "p4de.24xlarge"},
            "software": "generic",
            "strategy": {"micro_batch": 2, "dp": 8, "sharding": "zero1", "recompute": "none"},
        }
    )

    assert wattree.estimate(job).memory.fits
