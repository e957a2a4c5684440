"""Screening with devices that are slower than others, against playing the same job."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wattree.closed_form.degrees import Degrees
from wattree.closed_form.stragglers import slowed_stages
from wattree.closed_form.strategies import Estimates, estimate
from wattree.cost import load_calibration
from wattree.job import Job, job_from_mapping
from wattree.predict import setting_of, simulate
from wattree.strategy import StrategyOptions

GLOBAL_BATCH = 32
STRATEGIES: dict[str, dict[str, Any]] = {
    "tensor": {"tp": 8, "micro_batch": 2},
    "both": {"tp": 2, "dp": 4, "micro_batch": 1},
    "sharded": {"dp": 8, "sharding": "zero3", "micro_batch": 1},
    "pipeline": {"tp": 2, "pp": 2, "dp": 2, "micro_batch": 1},
}


def job(strategy: dict[str, Any], slowdown: dict[str, float]) -> Job:
    """Return a job on a node, some of whose devices are slower."""
    return job_from_mapping(
        {
            "model": "llama-3.1-8b",
            "data": {"sequence_length": 4096, "global_batch": GLOBAL_BATCH},
            "cluster": {"node": "dgx-h100", "slowdown": slowdown},
            "strategy": strategy,
        }
    )


def screened(own: Job) -> Estimates:
    """Return what screening says of the job's own strategy."""
    options = own.strategy
    assert isinstance(options, StrategyOptions)
    degrees = Degrees.of([options], GLOBAL_BATCH)
    return estimate(setting_of(own, load_calibration()), options, degrees)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("factor", [1.4, 3.0])
def test_screening_waits_for_the_slowest_device_as_playing_does(name: str, factor: float) -> None:
    """Time and energy, within what they differ by where devices are alike."""
    own = job(STRATEGIES[name], {"3": factor})
    found, executed = screened(own), simulate(own).result

    assert float(found.step_time_s[0]) == pytest.approx(executed.step_time_s, rel=0.025)
    assert float(found.energy_j[0]) == pytest.approx(executed.energy_j.total, rel=0.035)


def test_factors_are_those_of_the_ranks_of_each_kind_of_stage() -> None:
    """By hand: device 3 is on the first of two stages of 4 ranks, and of no strategy on 2."""
    own = job(STRATEGIES["pipeline"], {"3": 3.0, "6": 2.0})
    found = slowed_stages(own, np.array([8.0, 4.0, 2.0]), np.array([0, 1]))
    assert found is not None

    assert found.slowest.tolist() == [[3.0, 1.0, 1.0], [2.0, 3.0, 1.0]]
    assert found.mean.tolist() == [[1.5, 1.0, 1.0], [1.25, 2.0, 1.0]]
    assert found.waits.tolist() == [[1.5, 0.0, 0.0], [0.75, 1.0, 0.0]]
    assert slowed_stages(job(STRATEGIES["tensor"], {}), np.array([8.0]), np.array([0])) is None
