"""Fits of runs with known answers: what is found, what is undetermined, what is rejected."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.energy.synthetic import MODELS, TRUE, World, isolated, study
from wattree.energy import fit_energy as fit_energy_module
from wattree.energy.calibration import (
    CONSTANTS,
    EnergyCalibration,
    Scatter,
    StageConstant,
    Status,
    WorkLine,
)
from wattree.energy.calibration_file import (
    calibration_as_json,
    read_calibration,
    write_energy_calibration,
)
from wattree.energy.commands import fit_energy, predict_energy
from wattree.energy.fit import constants_of, fit_runs
from wattree.energy.fit_times import FittedOverlap, fit_overlap
from wattree.energy.observed import observations
from wattree.energy.predict import at_size, described, forecast
from wattree.energy.stage_model import energy_of_run
from wattree.errors import RunError, UnknownNameError
from wattree.report.energy_models_text import show_calibration
from wattree.trace.run import (
    Activity,
    MeterReading,
    PowerSeries,
    Run,
    RunOrigin,
    StageUse,
    Work,
)
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

    assert found == {name: pytest.approx(TRUE[name], rel=0.08) for name in names}


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
    """Every number to the last bit, with its unit next to it."""
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices_per_node": -1}, "devices_per_node: found -1, expected 0 to"),
        ({"most_nodes": -1}, "most_nodes: found -1, expected 1 to"),
        ({"scatter": Scatter(known=-1.0)}, r"scatter\.known: found -1\.0, expected a finite"),
        (
            {"covariance": ((-1.0,),), "correlated": ("energy.static_w",)},
            "expected a variance of 0",
        ),
    ],
)
def test_an_impossible_calibration_is_refused_with_its_key(
    calibration: EnergyCalibration, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """However its file was edited."""
    path = tmp_path / "calibration.yaml"
    write_energy_calibration(replace(calibration, **changes), path)

    with pytest.raises(RunError, match=message):
        read_calibration(path)


@pytest.mark.parametrize(
    ("name", "constant", "message"),
    [
        (
            "energy.static_w",
            StageConstant(value=1e308),
            r"value: found 1e\+308, expected .* at most 1e\+30",
        ),
        ("time.overlap", StageConstant(value=7.0), r"value: found 7\.0, expected .* at most 1"),
        (
            "energy.static_w",
            StageConstant(value=2.0, lower=3.0),
            "lower: found lower 3.0, value 2.0",
        ),
    ],
)
def test_an_impossible_constant_is_refused_with_its_key(
    calibration: EnergyCalibration, tmp_path: Path, name: str, constant: StageConstant, message: str
) -> None:
    """It would overflow, or give times and energies that nothing has."""
    path = tmp_path / "calibration.yaml"
    constants = {**calibration.constants, name: constant}
    write_energy_calibration(replace(calibration, constants=constants), path)

    with pytest.raises(RunError, match=rf"constants\.{name}\.{message}"):
        read_calibration(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time_ratio": -1.0}, r"time_ratio: found -1\.0"),
        ({"energy_ratio": 0.0}, r"energy_ratio: found 0\.0"),
        ({"gradient_bytes": -1.0}, r"gradient_bytes: found -1\.0"),
        ({"overlap": 7.0}, r"overlap: found 7\.0"),
        (
            {"work": {"flop": WorkLine(per_step=0.0, per_sample=-1.0)}},
            r"work\.flop\.per_sample: found",
        ),
    ],
)
def test_impossible_traits_are_refused_with_their_key(
    calibration: EnergyCalibration, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """Of a model of the calibration."""
    path = tmp_path / "calibration.yaml"
    models = {**calibration.models, "vgg-16": replace(calibration.models["vgg-16"], **changes)}
    write_energy_calibration(replace(calibration, models=models), path)

    with pytest.raises(RunError, match=rf"models\.vgg-16\.{message}"):
        read_calibration(path)


def test_an_overlap_of_which_runs_tell_little_is_weak() -> None:
    """Most of its range explains them as well."""
    run = World(noise=0.0).training("vgg-16", 16, 2)
    cases = [
        FittedOverlap(
            run=replace(run, stages={}, wall_s=run.iterations * (0.2 - share * 0.2 / 3)),
            computing=0.1,
            communicating=0.1,
            materials=0.0,
        )
        for share in (0.1, 0.5, 0.9)
    ]
    found = fit_overlap(cases)

    assert found.status is Status.WEAK
    assert found.note.startswith("any share from")


def test_a_calibration_reads_in_80_columns(calibration: EnergyCalibration) -> None:
    """No line is cut or wrapped, in a narrow terminal or a pipe."""
    console = Console(width=80, file=StringIO())
    show_calibration(calibration, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]

    assert "…" not in text
    assert " cluster_bytes_per_s" in text
    assert max(map(len, text.splitlines())) <= 80


def test_runs_without_rest_take_static_power_from_time_and_say_so(runs: tuple[Run, ...]) -> None:
    """Loader, collective and training runs differ enough in work per second."""
    found = fit_runs([run for run in runs if run.activity is not Activity.IDLE])

    assert found.constants["energy.static_w"].value == pytest.approx(220, rel=0.05)
    assert any("no idle run" in line for line in found.warnings)


def test_runs_alike_without_rest_are_refused() -> None:
    """Static power and arithmetic are then one."""
    world = World(seed=5)
    alike = [replace(world.training("vgg-16", 16, 1), stages={}) for _ in range(4)]

    with pytest.raises(RunError, match=r"found no 'idle' run.*expected an idle run"):
        fit_runs(alike)


def test_constants_in_one_ratio_are_said_to_be_one() -> None:
    """One model at one batch: FLOP, core time and bytes always come together."""
    world = World(seed=4)
    runs = [world.idle(), world.idle(), *(world.training("vgg-16", 16, 1) for _ in range(4))]
    found = fit_runs([without_split(run) for run in runs])

    assert found.constants["energy.core_w"].status is Status.INSEPARABLE
    assert found.constants["energy.core_w"].value is None
    assert any(
        "energy.core_w cannot be distinguished from energy.flop_j" in w for w in found.warnings
    )


def test_energies_of_stages_tell_constants_apart() -> None:
    """What comes in one ratio in every run is separate where runs say what each stage took."""
    world = World(seed=4, noise=0.005)
    runs = [world.idle(), world.idle(), *(world.training("vgg-16", 16, 1) for _ in range(4))]
    constant = fit_runs(runs).constants["energy.core_w"]

    assert constant.value == pytest.approx(TRUE["energy.core_w"], rel=0.1)


def test_energies_of_stages_decide_how_a_prediction_is_split() -> None:
    """Runs that differ in nothing but size leave the split open; their stages close it."""
    world = World(seed=7, noise=0.005)
    runs = [world.idle(), world.idle(), *study(world, nodes=(2, 4), batches=(16,))]
    target = World(noise=0.0).training("vgg-16", 16, 8)
    true_j = target.stages["communicating"].energy_j or 0.0
    found = forecast(fit_runs(runs), target).by_stage["communicating"].value

    assert found == pytest.approx(true_j, rel=0.1)


def test_stages_that_do_not_add_up_to_the_meters_are_refused() -> None:
    """An edited or broken file; the meters read what they read."""
    world = World()
    run = world.training("vgg-16", 16, 1)
    computing = replace(run.stages["computing"], energy_j=1e9)
    broken = replace(run, name="odd", stages={**run.stages, "computing": computing})

    with pytest.raises(RunError, match=r"odd: stages: found 1e\+09 J in all, expected what the"):
        fit_runs([world.idle(), broken])


def test_copies_of_runs_are_left_out_and_named(runs: tuple[Run, ...]) -> None:
    """Twice the same file is no second measurement."""
    once, twice = fit_runs(runs), fit_runs([*runs, *runs])

    assert twice.constants == once.constants
    assert any(
        line.startswith(f"{len(runs)} of {2 * len(runs)} runs are") for line in twice.warnings
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"work": Work(flop=1e300, samples=1.0)},
            r"odd: work\.flop: found 1e\+300, expected at most",
        ),
        (
            {"work": Work(flop=1e-300, samples=1.0)},
            r"odd: work\.flop: found 1e-300, expected 0, or at",
        ),
        ({"work": Work(flop=1e12, samples=0.0)}, r"odd: work\.samples: found 0 in a training run"),
        ({"nodes": 10**12}, r"odd: nodes: found 1e\+12, expected at most 1e\+07"),
        ({"rated_w": 0.0}, r"odd: rated_w: found 0, expected"),
        (
            {"meters": (MeterReading(domain="a/board", meter="csv", energy_j=1e29),), "stages": {}},
            r"odd: meters: found 1e\+29 J in .* s, expected more than",
        ),
        (
            {"power": (PowerSeries(domain="total", at_s=(1.0, 1e6), watts=(1.0, 1.0)),)},
            r"odd: power\[0\]\.at_s\[1\]: found 1e\+06 s, beyond the run's end",
        ),
        (
            {"power": (PowerSeries(domain="node7/gpu0", at_s=(1.0,), watts=(1.0,)),)},
            r"odd: power\[0\]\.domain: found 'node7/gpu0', which no meter of the run has",
        ),
    ],
)
def test_absurd_figures_are_refused_with_run_and_key(changes: dict[str, Any], message: str) -> None:
    """A typing error of many digits must not become a constant, nor overflow."""
    world = World()
    broken = replace(world.training("vgg-16", 16, 1), name="odd", **changes)

    with pytest.raises(RunError, match=message):
        fit_runs([world.idle(), broken])


def test_a_loader_within_the_process_adds_its_time_to_the_step() -> None:
    """Without workers nothing is prepared while a step computes: fitted and predicted so."""
    world = World(noise=0.0)
    runs = [world.idle(), *(in_process(world, samples) for samples in (8, 16, 32))]
    found = fit_runs(runs)
    target = in_process(world, 64)
    predicted = forecast(found, target)

    assert found.constants["time.materials.cores"].value == pytest.approx(1.0, rel=1e-3)
    assert found.models["vgg-16"].prefetch is False
    assert described(found, "vgg-16", nodes=1).prefetch is False
    assert predicted.exposed_s["materials"] * target.iterations == pytest.approx(
        target.stages["materials"].exposed_s, rel=0.01
    )
    assert predicted.step_s.value * target.iterations == pytest.approx(target.wall_s, rel=0.05)


def in_process(world: World, samples: float) -> Run:
    """Return a run on one node whose loader takes one core, while nothing computes."""
    run = world.training("vgg-16", samples, 1)
    waits_s = (run.work.core_s or 0.0) * run.iterations
    stages = {
        **run.stages,
        "materials": StageUse(busy_s=waits_s, exposed_s=waits_s),
        "computing": replace(run.stages["computing"], energy_j=None),
    }
    stages["communicating"] = replace(run.stages["communicating"], energy_j=None)
    wall_s = sum(use.exposed_s for use in stages.values())
    work = replace(run.work, read_bytes=None)
    return replace(run, stages=stages, wall_s=wall_s, work=work, prefetch=False)


def without_split(run: Run) -> Run:
    """Return a run whose meter tells no stages apart."""
    stages = {name: replace(use, energy_j=None) for name, use in run.stages.items()}
    return replace(run, stages=stages)


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
