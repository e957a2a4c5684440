"""Fits of runs of known answer: what is found, what is said not to be told, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.energy.synthetic import MODELS, TRUE, World, isolated, study
from wattree.energy.calibration import CONSTANTS, EnergyCalibration, Status
from wattree.energy.calibration_file import (
    calibration_as_json,
    read_calibration,
    write_energy_calibration,
)
from wattree.energy.commands import fit_energy, predict_energy
from wattree.energy.fit import fit_runs
from wattree.energy.predict import at_size, described, forecast
from wattree.energy.stage_model import energy_of_run
from wattree.errors import RunError, UnknownNameError
from wattree.trace.run import Activity, MeterReading, PowerSeries, Run, RunOrigin
from wattree.trace.run_file import write_run


@pytest.fixture(scope="module")
def runs() -> tuple[Run, ...]:
    """Return all runs of the protocol, 2 % noise in energy and 1 % in time."""
    world = World(seed=1, time_noise=0.01)
    return (*isolated(world), *study(world))


@pytest.fixture(scope="module")
def calibration(runs: tuple[Run, ...]) -> EnergyCalibration:
    """Return their fit."""
    return fit_runs(runs)


def test_intervals_hold_the_constants_that_made_the_runs(calibration: EnergyCalibration) -> None:
    """Of 13 intervals of 95 %, one may miss by chance; two would be a sign."""
    missed = [
        name
        for name, true in TRUE.items()
        if not (
            (calibration.constants[name].lower or 0) <= true
            <= (calibration.constants[name].upper or 0)
        )
    ]  # fmt: skip

    assert len(missed) <= 1, missed


def test_the_main_constants_are_found_to_a_few_percent(calibration: EnergyCalibration) -> None:
    """With isolated runs for each of them."""
    names = ("energy.static_w", "energy.flop_j", "energy.core_w", "time.overlap")
    found = {name: calibration.constants[name].value for name in names}

    assert found == {name: pytest.approx(TRUE[name], rel=0.05) for name in names}


def test_what_no_run_exercises_has_no_value(calibration: EnergyCalibration) -> None:
    """Nothing is invented."""
    for name in ("energy.copied_j_per_byte", "time.network.within.alpha_s"):
        assert (calibration.constants[name].value, calibration.constants[name].status) == (
            None,
            Status.ABSENT,
        )


def test_the_storage_of_the_cluster_is_only_bounded(calibration: EnergyCalibration) -> None:
    """No run was slowed by it, so it is at least as fast as the fastest."""
    constant = calibration.constants["time.materials.cluster_bytes_per_s"]

    assert constant.value is None
    assert constant.lower == pytest.approx(0.5e9, rel=0.05)


def test_energies_of_stages_add_up_to_that_of_the_run(
    runs: tuple[Run, ...], calibration: EnergyCalibration
) -> None:
    """To 1e-9, with static and dynamic parts from a second way of adding up."""
    values = calibration.values()
    for run in runs[-5:]:
        work, steps = run.work, run.iterations
        whole = values["energy.static_w"] * run.nodes * run.wall_s + steps * (
            calibration.models[run.model].energy_ratio * values["energy.flop_j"] * (work.flop or 0)
            + values["energy.core_w"] * (work.core_s or 0)
            + values["energy.read_j_per_byte"] * (work.read_bytes or 0)
            + values["energy.network_j_per_byte"] * (work.network_bytes or 0)
        )
        whole += (
            calibration.models[run.model].energy_ratio
            * values["energy.computing_w"]
            * run.nodes
            * run.stages["computing"].exposed_s
        )
        whole += values["energy.polling_w"] * run.nodes * run.stages["communicating"].busy_s

        assert sum(energy_of_run(calibration, run).values()) == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("seed", range(2, 5))
def test_larger_node_counts_are_predicted_near_the_noise(
    seed: int, calibration: EnergyCalibration
) -> None:
    """N = 16 to 128 from N <= 8, from the work alone; most intervals hold the truth."""
    larger = list(study(World(seed=seed), nodes=(16, 32, 64, 128)))
    found = [forecast(calibration, run).energy_j for run in larger]
    errors = [each.value / run.energy_j - 1 for each, run in zip(found, larger, strict=True)]
    inside = [
        (each.lower or 0) <= run.energy_j <= (each.upper or 0)
        for each, run in zip(found, larger, strict=True)
    ]

    assert np.mean(np.abs(errors)) < 0.025
    assert np.mean(inside) >= 0.85


def test_an_unseen_model_is_predicted(runs: tuple[Run, ...]) -> None:
    """Its work is known from a run of it; its energy is not looked at."""
    fitted = fit_runs([run for run in runs if run.model != "vit-b-16"])
    target = World(seed=9, noise=0.0).training("vit-b-16", 16, 32)
    found = forecast(fitted, replace(target, meters=()))

    assert found.energy_j.value == pytest.approx(target.energy_j, rel=0.04)
    assert "vit-b-16" not in fitted.models


def test_a_calibration_survives_its_file(calibration: EnergyCalibration, tmp_path: Path) -> None:
    """Every number to the last bit, with its unit beside it."""
    path = tmp_path / "calibration.yaml"
    write_energy_calibration(calibration, path)

    assert read_calibration(path) == calibration
    assert "unit: W" in path.read_text()
    assert calibration_as_json(calibration)["constants"].keys() == CONSTANTS.keys()


def test_a_broken_calibration_is_refused_with_every_fault(
    calibration: EnergyCalibration, tmp_path: Path
) -> None:
    """Each with file and key."""
    path = tmp_path / "calibration.yaml"
    write_energy_calibration(calibration, path)
    text = (
        path.read_text().replace("unit: W,", "unit: kW,").replace("time.overlap:", "time.overlp:")
    )
    path.write_text(text)

    with pytest.raises(RunError) as refused:
        read_calibration(path)
    message = str(refused.value)
    assert "constants.energy.static_w.unit: found 'kW', expected 'W'" in message
    assert message.startswith(str(path))


def test_runs_without_rest_take_static_power_from_time_and_say_so(runs: tuple[Run, ...]) -> None:
    """Loader, collective and training runs differ enough in work per second."""
    found = fit_runs([run for run in runs if run.activity is not Activity.IDLE])

    assert found.constants["energy.static_w"].value == pytest.approx(220, rel=0.05)
    assert any("no idle run" in line for line in found.warnings)


def test_runs_alike_without_rest_are_refused() -> None:
    """Static power and arithmetic are then one."""
    world = World(noise=0.0)
    alike = [replace(world.training("vgg-16", 16, 1), name=f"run-{i}") for i in range(4)]

    with pytest.raises(RunError, match=r"found no 'idle' run.*expected an idle run"):
        fit_runs(alike)


def test_constants_in_one_ratio_are_said_to_be_one() -> None:
    """One model at one batch: FLOP, core time and bytes always come together."""
    world = World(seed=4)
    runs = [world.idle(), world.idle(), *(world.training("vgg-16", 16, 1) for _ in range(4))]
    found = fit_runs(runs)

    assert found.constants["energy.core_w"].status is Status.INSEPARABLE
    assert found.constants["energy.core_w"].value is None
    assert any("energy.core_w cannot be told apart from energy.flop_j" in w for w in found.warnings)


def test_as_many_constants_as_runs_have_no_interval() -> None:
    """And the reader is told to repeat."""
    world = World(noise=0.0)
    found = fit_runs([world.idle(), world.training("vgg-16", 16, 1)])

    assert found.constants["energy.static_w"].upper is None
    assert any("no intervals; repeat runs" in line for line in found.warnings)


def test_too_few_runs_are_refused() -> None:
    """One says nothing of what draws what."""
    with pytest.raises(RunError, match="found 1 to use, expected two or more"):
        fit_runs([World().idle()])


def test_faults_of_all_runs_are_told_at_once() -> None:
    """NaN, negative and gapped power, no meter: each with its run and key."""
    world = World()
    good = world.training("vgg-16", 16, 1)
    at_s = tuple(float(t) for t in range(1, 11))
    gapped = PowerSeries(domain="total", at_s=(*at_s, 60.0), watts=(1.0,) * 11)
    broken = PowerSeries(domain="total", at_s=at_s, watts=(*(1.0,) * 8, float("nan"), -3.0))
    runs = [
        replace(good, name="a", power=(gapped,)),
        replace(good, name="b", power=(broken,)),
        replace(good, name="c", meters=()),
        replace(good, name="d", iterations=0),
    ]

    with pytest.raises(RunError) as refused:
        fit_runs(runs)
    message = str(refused.value)
    assert "a: power[0].at_s[10]: found a gap of 50 s in total, expected a reading" in message
    assert "b: power[0].watts[8]: found nan" in message
    assert "b: power[0].watts[9]: found -3.0" in message
    assert "c: meters: found none" in message
    assert "d: iterations: found 0, expected those of a run of 'training'" in message


def test_a_fault_in_a_file_names_the_file(tmp_path: Path) -> None:
    """Files are read before anything is fitted."""
    path = tmp_path / "run.json"
    write_run(World().idle(), path)
    path.write_text(path.read_text().replace('"wall_s"', '"wal_s"'))

    with pytest.raises(RunError, match=r"(?s)run\.json.*wal_s: unknown key; did you mean 'wall_s'"):
        fit_energy([tmp_path])


def test_runs_that_may_not_be_mixed_are_refused() -> None:
    """Another origin, kind of node or set of meters is another fit."""
    world = World()
    first = world.idle()
    other = replace(
        world.training("vgg-16", 16, 1),
        origin=RunOrigin.MEASURED,
        node="elsewhere",
        meters=(MeterReading(domain="node0/gpu0", meter="nvml", energy_j=5.0),),
    )

    with pytest.raises(RunError) as refused:
        fit_runs([first, other])
    assert [line.partition(":")[0] for line in refused.value.problems] == [
        "node",
        "origin",
        "meters",
    ]


def test_a_failed_run_is_left_out_and_named(runs: tuple[Run, ...]) -> None:
    """Its energy was read, but who knows what it did."""
    found = fit_runs([*runs[:40], replace(runs[-1], name="failed", exit_code=3)])

    assert "failed is left out: it ended with code 3" in found.warnings


def test_predictions_need_what_the_runs_tell(calibration: EnergyCalibration) -> None:
    """Unknown models, absent networks and missing work are refused, each with what would help."""
    with pytest.raises(UnknownNameError, match="unknown model of the calibration 'vgg'"):
        predict_energy(calibration, model="vgg", nodes=[2])
    with pytest.raises(RunError, match="nodes: found 0"):
        predict_energy(calibration, model="vgg-16", nodes=[0])
    run = described(calibration, "vgg-16", nodes=1)
    with pytest.raises(
        RunError, match=r"time\.network\.within\.bytes_per_s: the calibration does not"
    ):
        forecast(calibration, replace(run, devices_per_node=4))
    with pytest.raises(RunError, match=r"work\.flop: is missing"):
        forecast(calibration, replace(run, work=replace(run.work, flop=None)))


def test_a_model_of_the_calibration_does_what_its_runs_did(calibration: EnergyCalibration) -> None:
    """`described` gives the work of a run of that size, and `at_size` scales one."""
    run = World(noise=0.0).training("resnet-50", 32, 4)
    from_models = described(calibration, "resnet-50", nodes=16, samples_per_rank=32)
    from_run = at_size(run, 16, iterations=1)

    for name in ("samples", "flop", "core_s", "read_bytes", "gradient_bytes"):
        assert getattr(from_models.work, name) == pytest.approx(getattr(from_run.work, name))
    assert from_models.work.flop == pytest.approx(16 * 32 * MODELS["resnet-50"].flop)


def test_far_more_nodes_than_in_the_fit_are_a_warning(calibration: EnergyCalibration) -> None:
    """What only grows large there is not in any run."""
    (found,) = predict_energy(calibration, model="vgg-16", nodes=[512])

    assert any("512 nodes are far beyond the 8 of the fit" in line for line in found.warnings)


def test_runs_without_flop_predict_other_sizes_but_no_other_model() -> None:
    """What a user measures who counts no FLOP: training on 1 to 4 nodes, and rest."""
    world = World(seed=6, noise=0.005)
    runs = [world.idle(), world.idle(), *study(world, nodes=(1, 2, 4), batches=(8, 16))]
    bare = [replace(run, work=replace(run.work, flop=None)) for run in runs]
    found = fit_runs(bare)
    target = World(noise=0.0).training("vgg-16", 16, 8)
    predicted = forecast(found, replace(target, work=replace(target.work, flop=None)))

    assert found.constants["energy.flop_j"].status is Status.ABSENT
    assert found.constants["time.computing.s_per_sample"].value is not None
    assert predicted.energy_j.value == pytest.approx(target.energy_j, rel=0.03)
    with pytest.raises(RunError, match="do not tell FLOP, so nothing is known of other models"):
        forecast(found, replace(target, model="bert-base"))


def test_a_constant_without_an_interval_leaves_none_to_a_prediction_that_needs_it() -> None:
    """And is named; one that does not matter there takes nothing away."""
    world = World(noise=0.0)
    found = fit_runs([world.idle(), world.training("vgg-16", 16, 2)])
    predicted = forecast(found, world.training("vgg-16", 16, 4))

    assert predicted.energy_j.upper is None
    assert any(line.startswith("no interval: the runs leave none") for line in predicted.warnings)
