"""A job under several power limits: what holds along the curve."""

from __future__ import annotations

import pytest

from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.errors import HardwareError
from wattree.hardware import load_node
from wattree.job import Job, job_from_mapping
from wattree.predict import power_sweep, setting_of, simulate, usual_limits_w
from wattree.strategy import StrategyOptions

MODEL = {
    "model": "llama-3.2-1b",
    "data": {"sequence_length": 2048, "global_batch": 64},
    "cluster": {"node": "dgx-h100"},
}


def job(**strategy: object) -> Job:
    """Return a small job on eight H100."""
    return job_from_mapping(MODEL | {"strategy": {"preset": "zero3", **strategy}})


def test_time_grows_and_power_falls_along_a_sweep_and_the_knee_is_named() -> None:
    """The usual limits fall from rated power; the least of energy lies between the ends."""
    sweep = power_sweep(job(micro_batch=2))
    limits, times, powers, joules = (
        [getattr(step, name) for step in sweep.steps]
        for name in ("power_limit_w", "step_time_s", "average_power_w", "energy_j")
    )

    assert limits == list(usual_limits_w(job().cluster)) == sorted(limits, reverse=True)
    assert limits[0] == load_node("dgx-h100").device.tdp_w
    assert times == sorted(times)
    assert powers == sorted(powers, reverse=True)
    assert sweep.least_energy_w == limits[joules.index(min(joules))]
    assert limits[0] > sweep.least_energy_w > limits[-1]
    assert sweep.least_energy_delay_w >= sweep.least_energy_w
    assert sweep.steps[0].slowdown == 1.0


def test_the_rated_limit_is_no_limit() -> None:
    """Neither time nor energy changes."""
    free = simulate(job(micro_batch=2)).result
    sweep = power_sweep(job(micro_batch=2), [900.0, 800.0, 700.0])
    (first,) = sweep.steps

    assert first.power_limit_w == 700.0
    assert sum("no effect" in line for line in sweep.warnings) == 2
    assert first.step_time_s == free.step_time_s
    assert first.energy_j == free.energy_j.total


@pytest.mark.parametrize("limit_w", [600.0, 400.0, 250.0])
def test_screening_slows_under_a_limit_as_playing_does(limit_w: float) -> None:
    """Both ask the same function, operator by operator."""
    from wattree.cost import load_calibration

    options = job(micro_batch=2).strategy
    assert isinstance(options, StrategyOptions)
    free, capped = (
        setting_of(each, load_calibration())
        for each in (job(micro_batch=2), job(micro_batch=2).capped(limit_w))
    )
    screened = [estimate(each, options, Degrees.of([options], 64)) for each in (free, capped)]
    executed = [simulate(each.job).result for each in (free, capped)]

    ratio = float(screened[1].step_time_s[0] / screened[0].step_time_s[0])
    assert ratio > 1.0
    assert ratio == pytest.approx(executed[1].step_time_s / executed[0].step_time_s, rel=0.02)


def test_a_limit_that_no_device_can_keep_is_refused_before_any_step_is_played() -> None:
    """It is not above what the device draws at rest."""
    with pytest.raises(HardwareError, match="not above what h100-sxm-80gb draws at rest"):
        power_sweep(job(), [400.0, 60.0])
