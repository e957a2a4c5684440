"""Fits of runs with known answers: what is found, what is undetermined, what is rejected."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.energy.fit_runs import in_process
from tests.energy.synthetic import TRUE, World, study
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
from wattree.energy.fit import fit_runs
from wattree.energy.fit_times import FittedOverlap, fit_overlap
from wattree.energy.predict import described, forecast
from wattree.energy.stage_model import energy_of_run
from wattree.errors import RunError
from wattree.report.energy_models_text import show_calibration
from wattree.trace.run import (
    Activity,
    MeterReading,
    PowerSeries,
    Run,
    Work,
)


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
        ({"devices_per_node": -1}, "devices_per_node: found -1, expected a finite number of 0"),
        ({"most_nodes": -1}, "most_nodes: found -1, expected a finite number of 1"),
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


def without_split(run: Run) -> Run:
    """Return a run whose meter tells no stages apart."""
    stages = {name: replace(use, energy_j=None) for name, use in run.stages.items()}
    return replace(run, stages=stages)
