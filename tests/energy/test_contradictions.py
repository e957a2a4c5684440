"""Runs that are not what they are called, and fits that find no energy in training."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.energy.synthetic import World, isolated, study
from wattree.energy.fit import fit_runs
from wattree.trace.run import Activity, Run


def runs(*, busy: float, power_w: float | None = None) -> list[Run]:
    """Return idle and training runs of one machine, busy at rest; power of all alike if given."""
    world = World(seed=3)
    found = [each for each in isolated(world) if each.activity is Activity.IDLE]
    found = [replace(each, utilization={"cpu": busy}) for each in found]
    found += study(world, nodes=(1, 2, 4))
    return found if power_w is None else [_drawing(each, power_w) for each in found]


def _drawing(run: Run, power_w: float) -> Run:
    """Return a run whose every node drew the same all the time."""
    energy_j = power_w * run.nodes * run.wall_s
    (meter,) = run.meters[:1]
    stages = {name: replace(use, energy_j=None) for name, use in run.stages.items()}
    return replace(run, meters=(replace(meter, energy_j=energy_j),), stages=stages, power=())


def test_an_idle_run_of_a_busy_machine_is_named() -> None:
    """Its power is not that of rest; what to do is said, before anything else."""
    (first, *_) = fit_runs(runs(busy=0.97)).warnings

    assert "is no idle run: its cpu was 97% busy" in first
    assert "wattree measure --activity idle" in first


@pytest.mark.parametrize("busy", [0.0, 0.08])
def test_an_idle_machine_is_not_reproached(busy: float) -> None:
    """The services of a system take some of its time; training draws what it draws."""
    warnings = fit_runs(runs(busy=busy)).warnings

    assert not any("idle run:" in line or "no energy" in line for line in warnings)


def test_training_that_draws_no_more_than_rest_is_said() -> None:
    """Constants of zero would predict a run for nothing."""
    calibration = fit_runs(runs(busy=0.0, power_w=13.5))

    assert calibration.constants["energy.static_w"].value == pytest.approx(13.5, rel=1e-3)
    assert calibration.warnings[0].startswith(
        "training takes no energy by this fit: 13.5 W at rest are 100% or more"
    )
