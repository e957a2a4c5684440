"""Runs that no fit can use, alone or together, and what fits warn of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.energy.fit_runs import in_process
from tests.energy.synthetic import MODELS, World, isolated, study
from wattree.energy import fit_energy as fit_energy_module
from wattree.energy.calibration import (
    EnergyCalibration,
    Status,
)
from wattree.energy.calibration_file import (
    read_calibration,
    write_energy_calibration,
)
from wattree.energy.commands import fit_energy, predict_energy
from wattree.energy.fit import constants_of, fit_runs
from wattree.energy.observed import observations
from wattree.energy.predict import at_size, described, forecast
from wattree.energy.stage_model import energy_of_run
from wattree.errors import RunError, UnknownNameError
from wattree.trace.run import (
    Activity,
    MeterReading,
    PowerSeries,
    Run,
    RunOrigin,
)
from wattree.trace.run_file import write_run


def test_as_many_constants_as_runs_have_no_interval() -> None:
    """And the message advises to repeat."""
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
        stages={},
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


def test_loaders_of_two_kinds_are_not_fitted_together() -> None:
    """Rates of workers and of a loader within the process are other constants."""
    world = World(noise=0.0)
    within = replace(in_process(world, 8), name="within")
    ahead = replace(world.training("vgg-16", 16, 1), name="ahead", prefetch=True)

    with pytest.raises(
        RunError, match=r"prefetch: found false \(within\) and true \(ahead\), expected one"
    ):
        fit_runs([world.idle(), within, ahead])


def test_a_loader_of_which_nobody_speaks_is_as_the_others() -> None:
    """A program measured from outside cannot say it."""
    world = World(noise=0.0)
    runs = [replace(in_process(world, each), name=f"b{each}") for each in (8, 16, 32)]
    silent = replace(runs[1], prefetch=None)
    found = fit_runs([world.idle(), runs[0], silent, runs[2]])

    assert found.constants["time.materials.cores"].value == pytest.approx(1.0, rel=1e-3)
    assert "b16: prefetch is not stated, and taken as false as in the other runs" in found.warnings


def test_a_failed_run_is_left_out_whatever_it_lacks() -> None:
    """A measurement that was killed has no steps, one that was too short no energy."""
    world = World(noise=0.0)
    runs = [world.idle(), *(world.training("vgg-16", 16, nodes) for nodes in (1, 2, 4))]
    killed = replace(runs[1], name="killed", iterations=0, exit_code=None)
    short = replace(runs[1], name="short", meters=(), exit_code=3, origin=RunOrigin.UNREAD)
    found = fit_runs([*runs, killed, short])

    assert found.warnings[:2] == (
        "killed is left out: it was interrupted, or lost ranks",
        "short is left out: it ended with code 3",
    )
    assert found.constants == fit_runs(runs).constants


def test_weights_that_were_chosen_are_said() -> None:
    """Where runs state the energy of their stages, and only there."""
    world = World(noise=0.0)
    runs = [world.idle(), *(world.training("vgg-16", 16, nodes) for nodes in (1, 2, 4))]
    silent = [
        replace(run, stages={name: replace(use, energy_j=None) for name, use in run.stages.items()})
        for run in runs
    ]
    said, unsaid = fit_runs(runs).warnings, fit_runs(silent).warnings

    assert any(
        line.startswith("energies of stages, stated by 3 of 4 runs, count with errors 4 times")
        for line in said
    )
    assert not any("chosen" in line for line in unsaid)


def test_runs_of_one_name_are_told_apart_by_their_files(tmp_path: Path) -> None:
    """`mv run.json train1.json` leaves the name within."""
    world = World(noise=0.0)
    write_run(replace(world.idle(), name="rest"), tmp_path / "idle.json")
    for number, nodes in enumerate((1, 2, 4)):
        run = replace(world.training("vgg-16", 16, nodes), name="run")
        write_run(run, tmp_path / f"train{number}.json")
    found = fit_energy([tmp_path])

    assert found.runs == {"idle": ("rest",), "training": ("train0", "train1", "train2")}


def test_a_batch_far_from_those_of_the_fit_is_said(calibration: EnergyCalibration) -> None:
    """A line through 8 to 32 samples says little of 10,000."""
    near, far = (
        forecast(calibration, described(calibration, "vgg-16", nodes=2, samples_per_rank=samples))
        for samples in (calibration.models["vgg-16"].most_samples, 10_000.0)
    )

    assert not any("samples on a rank" in line for line in near.warnings)
    assert any(line.startswith("10000 samples on a rank are far from") for line in far.warnings)


@pytest.mark.parametrize("errors", [1.0, 16.0])
def test_the_whole_does_not_hang_on_the_chosen_weight_of_stages(
    runs: tuple[Run, ...], errors: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The split does, which is why the weight is said."""
    small = [run for run in runs if run.nodes <= 4]
    large = [run for run in runs if run.nodes > 4 and run.activity is Activity.TRAINING]
    usual = constants_of(observations(small))
    monkeypatch.setattr(fit_energy_module, "_SPLIT_ERRORS", errors)
    other = constants_of(observations(small))

    changes = [
        sum(energy_of_run(other, run).values()) / sum(energy_of_run(usual, run).values()) - 1
        for run in large
    ]
    assert 0 < max(map(abs, changes)) < 0.02


def test_a_unit_of_any_kind_is_refused_or_right(
    calibration: EnergyCalibration, tmp_path: Path
) -> None:
    """A mapping is no text."""
    path = tmp_path / "c.yaml"
    write_energy_calibration(calibration, path)
    path.write_text(path.read_text().replace("unit: W,", "unit: {a: 1},", 1))

    with pytest.raises(RunError, match=r"constants\.energy\.static_w\.unit: found {'a': 1}"):
        read_calibration(path)


def test_runs_that_lack_an_amount_leave_its_constant_to_the_others() -> None:
    """Training of which no stage is known: the isolated runs determine polling as before."""
    world = World(seed=5)
    apart = list(isolated(world))
    lacking = [replace(run, stages={}) for run in study(world)]

    alone, both = (
        fit_runs(runs).constants["energy.polling_w"] for runs in (apart, apart + lacking)
    )

    assert both.value == pytest.approx(alone.value)


def test_few_runs_that_lack_an_amount_stay_if_others_need_them() -> None:
    """Three runs of training without times of communication: they alone have core seconds."""
    world = World(seed=5)
    apart = [world.idle() for _ in range(3)]
    apart += [world.static("resnet-50", samples) for samples in (8, 16, 32)]
    apart += [world.collective(*each) for each in ((1e6, 2), (1e9, 2), (1e3, 4), (1e9, 8))]
    trained = [
        _without_communicating(world.training("resnet-50", 8 * times, 2 * times), copied, cores)
        for times, copied, cores in ((1, 3e11, 1), (2, 0.0, 5), (4, 7e11, 2))
    ]
    found = fit_runs(apart + trained).constants

    assert found["energy.read_j_per_byte"].value is not None
    assert found["energy.core_w"].status is not Status.ABSENT


def _without_communicating(run: Run, copied_bytes: float, core_times: float) -> Run:
    """Return a run that states no stage of communication, with work of its own."""
    stages = {name: replace(each, energy_j=None) for name, each in run.stages.items()}
    exposed_s = stages.pop("communicating").exposed_s
    own = stages["computing"]
    stages["computing"] = replace(own, exposed_s=own.exposed_s + exposed_s)
    core_s = (run.work.core_s or 0.0) * core_times
    work = replace(run.work, core_s=core_s, copied_bytes=copied_bytes, memory_bytes=0.0)
    return replace(run, stages=stages, work=work)
