"""One strategy by the closed form, against its simulation."""

from __future__ import annotations

from typing import Any

import pytest

import wattree
from wattree.errors import JobError, StrategyError
from wattree.job import Job, job_from_mapping

STRATEGIES: dict[str, dict[str, Any]] = {
    "pipeline": {"tp": 2, "pp": 4, "micro_batch": 1, "sharding": "zero1"},
    "sharded": {"fsdp": 8, "micro_batch": 1, "sharding": "zero3", "recompute": "full"},
    "interleaved": {"tp": 2, "pp": 4, "micro_batch": 1, "virtual_stages": 2},
}


def job(strategy: dict[str, Any] | str) -> Job:
    """Return a job on one node."""
    return job_from_mapping(
        {
            "model": "llama-3.1-8b",
            "data": {"sequence_length": 4096, "global_batch": 32},
            "cluster": {"node": "dgx-h100", "site": "sweden"},
            "strategy": strategy,
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
        memory = executed["memory"]
        assert found["memory"]["peak_bytes"] == pytest.approx(memory["peak_bytes"], rel=0.02), name
        assert found["memory"]["fits"] == memory["fits"], name


def test_a_job_asked_about_again_has_the_same_figures() -> None:
    """What is kept from other strategies of a job changes no figure of this one."""
    first = wattree.estimate(job(STRATEGIES["pipeline"]))
    wattree.estimate(job(STRATEGIES["sharded"]))

    assert wattree.estimate(job(STRATEGIES["pipeline"])) == first


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
