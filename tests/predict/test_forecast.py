"""Jobs as what a calibration predicts: their work is that of their simulation, however large."""

from __future__ import annotations

from typing import Any

import pytest

import wattree
from wattree.energy.calibration import EnergyCalibration
from wattree.energy.commands import fit_energy, predict_energy
from wattree.errors import JobError
from wattree.job import Job, job_from_mapping
from wattree.predict import forecast_job, idle_run_of, loader_run_of, run_of


def job_of(nodes: int, samples: int, model: str = "resnet-50", **strategy: Any) -> Job:
    """Return a data-parallel job on nodes of one processor."""
    return job_from_mapping(
        {
            "model": model,
            "data": {"global_batch": samples * nodes, "loader": "imagenet-jpeg"},
            "precision": "fp32",
            "cluster": {"node": "ft-2000-plus-node", "nodes": nodes},
            "strategy": {"preset": "ddp", "dp": nodes, "micro_batch": samples, **strategy},
        }
    )


@pytest.fixture(scope="module")
def calibration() -> EnergyCalibration:
    """Return what runs of two models on 2 and 4 nodes tell."""
    runs = []
    for nodes in (2, 4):
        for model in ("resnet-50", "resnet-18"):
            for samples in (4, 8):
                job = job_of(nodes, samples, model)
                prediction = wattree.simulate(job)
                name = f"{model}-{samples}-on-{nodes}"
                runs.append(run_of(job, prediction, steps=10, name=name))
        runs.append(loader_run_of(job, prediction, steps=10, name=f"loader-{nodes}"))
        runs.append(idle_run_of(job, seconds=60, name=f"idle-{nodes}", nodes=nodes))
    return fit_energy(runs)


@pytest.mark.parametrize("model", ["resnet-50", "resnet-34"])
@pytest.mark.parametrize("simulated", [1, 2, 4])
def test_a_job_is_predicted_as_its_run_is(
    calibration: EnergyCalibration, model: str, simulated: int
) -> None:
    """Work scales with ranks, so that the job's own number of them does not matter."""
    job = job_of(8, 8, model)
    run = run_of(job, wattree.simulate(job), steps=1, name="target")
    expected = predict_energy(calibration, run=run, nodes=[8], iterations=3)[0]
    (found,) = forecast_job(calibration, job_of(simulated, 8, model), nodes=[8], iterations=3)

    assert (found.nodes, found.samples, found.iterations) == (8, 64, 3)
    assert found.model == expected.model
    assert found.step_s.value == pytest.approx(expected.step_s.value, rel=1e-6)
    assert found.energy_j.value == pytest.approx(expected.energy_j.value, rel=1e-6)
    parts = sum(each.value for each in found.by_stage.values())
    assert parts == pytest.approx(found.energy_j.value, rel=1e-9)


def test_ranks_of_a_node_are_the_calibrations(calibration: EnergyCalibration) -> None:
    """A job on nodes of several devices is taken rank by rank."""
    many = job_from_mapping(
        {
            "model": "resnet-50",
            "data": {"global_batch": 8 * 6, "loader": "imagenet-jpeg"},
            "precision": "fp32",
            "cluster": {"node": "mt-2000-plus-node", "nodes": 2},
            "strategy": {"preset": "ddp", "dp": 6, "micro_batch": 8},
        }
    )
    (found,) = forecast_job(calibration, many, nodes=[4])
    (expected,) = forecast_job(calibration, job_of(2, 8), nodes=[4])

    assert found.ranks == expected.ranks == 4
    assert found.energy_j.value == pytest.approx(expected.energy_j.value, rel=1e-6)


def test_only_whole_replicas_are_predicted(calibration: EnergyCalibration) -> None:
    """Stages know no traffic but that of gradients, and say where there is other traffic."""
    with pytest.raises(JobError, match="strategy: found fsdp=2, expected whole replicas"):
        forecast_job(calibration, job_of(2, 8, preset="fsdp", dp=1, fsdp=2), nodes=[4])
    plain = forecast_job(calibration, job_of(2, 8), nodes=[4])[0].warnings
    twice = job_of(2, 8, micro_batch=4, reduce_every_micro_batch=True)
    told = forecast_job(calibration, twice, nodes=[4])[0].warnings

    assert not any("all-reduce of fp32 gradients" in line for line in plain)
    assert any("send 2.00 times what an all-reduce of fp32 gradients" in line for line in told)
