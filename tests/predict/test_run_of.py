"""A simulated step as a run: nothing of its energy, time and work is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest

import wattree
from wattree.energy.commands import fit_energy, predict_energy
from wattree.job import Job, job_from_mapping
from wattree.predict import idle_run_of, loader_run_of, run_of
from wattree.trace.run import Activity, Run, RunOrigin
from wattree.trace.run_checks import problems_of


def job_of(nodes: int, samples: int, **data: Any) -> Job:
    """Return a data-parallel job on nodes of one processor."""
    return job_from_mapping(
        {
            "model": "resnet-50",
            "data": {"global_batch": samples * nodes, "loader": "imagenet-jpeg", **data},
            "precision": "fp32",
            "cluster": {"node": "ft-2000-plus-node", "nodes": nodes},
            "strategy": {"preset": "ddp", "dp": nodes, "micro_batch": samples},
        }
    )


@pytest.fixture(scope="module")
def run() -> Run:
    """Return ten steps on four nodes, with a power series."""
    job = job_of(4, 8)
    return run_of(job, wattree.simulate(job), steps=10, name="run", interval_s=0.1)


def test_a_run_holds_the_steps_of_its_simulation(run: Run) -> None:
    """Energy by stage adds up to the meter, exposed times to the length, to 1e-9."""
    result = wattree.simulate(job_of(4, 8)).result
    pue = job_of(4, 8).cluster.site.pue

    assert problems_of(run) == []
    assert run.origin is RunOrigin.SIMULATED
    assert run.energy_j == pytest.approx(10 * result.energy_j.total / pue, rel=1e-9)
    stages = run.stages.values()
    assert sum(use.energy_j or 0.0 for use in stages) == pytest.approx(run.energy_j, rel=1e-9)
    assert sum(use.exposed_s for use in stages) == pytest.approx(run.wall_s, rel=1e-9)


def test_its_work_is_that_of_the_model(run: Run) -> None:
    """FLOP of forward and backward, and a ring's bytes: 2 (N - 1) G over all ranks."""
    result = wattree.simulate(job_of(4, 8)).result

    assert run.work.flop == pytest.approx(result.model_flop_per_step)
    assert run.work.gradient_bytes == 4 * result.parameters
    assert run.work.network_bytes == pytest.approx(2 * 3 * 4 * result.parameters)
    assert run.work.core_s is not None
    assert run.work.core_s > 0


def test_its_series_has_its_energy(run: Run) -> None:
    """Up to the part of an interval that is left at the end."""
    (series,) = run.power
    energy_j = sum(series.watts) * 0.1

    assert energy_j == pytest.approx(run.energy_j, rel=0.1 / run.wall_s + 1e-9)


def test_simulated_runs_are_fitted_and_predicted() -> None:
    """The whole line: simulate small sizes, fit, predict a larger one, compare with simulation."""
    runs = []
    for nodes in (2, 4, 8):
        for samples in (4, 8):
            job = job_of(nodes, samples)
            prediction = wattree.simulate(job)
            name = f"{samples}-on-{nodes}"
            runs.append(run_of(job, prediction, steps=10, name=name))
        runs.append(loader_run_of(job, prediction, steps=10, name=f"loader-{nodes}"))
        runs.append(idle_run_of(job, seconds=60, name=f"idle-{nodes}", nodes=nodes))
    calibration = fit_energy(runs)
    found = predict_energy(calibration, model=runs[0].model, nodes=[16], samples_per_rank=8)[0]
    job = job_of(16, 8)
    target = run_of(job, wattree.simulate(job), steps=1, name="target")

    assert {run.activity for run in runs} == {Activity.TRAINING, Activity.LOADER, Activity.IDLE}
    assert calibration.origin is RunOrigin.SIMULATED
    assert found.energy_j.value == pytest.approx(target.energy_j, rel=0.03)
