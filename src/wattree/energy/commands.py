"""Fit, predict and compare energy from files or objects: entry points of commands and Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from wattree.energy.calibration import EnergyCalibration
from wattree.energy.calibration_file import read_calibration
from wattree.energy.compare import EnergyComparison, compare_runs
from wattree.energy.fit import fit_runs
from wattree.energy.predict import EnergyForecast, at_size, described, forecast
from wattree.energy.series import Policy
from wattree.errors import JobError, RunError
from wattree.files import read_json
from wattree.trace.run import Run
from wattree.trace.run_file import read_run, read_runs

#: A run's schema stands at the beginning of its file. [B]
_HEAD_BYTES = 256
#: Runs, their files, or folders of such files; or one of them.
Runs = Run | str | Path | Iterable[Run | str | Path]


def fit_energy(runs: Runs, *, node: str | None = None) -> EnergyCalibration:
    """Return the constants of the stage model that the runs determine, with intervals.

    Args:
        runs: Runs, files of them, or folders of such files.
        node: Kind of node to fit if the runs have several.

    Raises:
        RunError: Runs that cannot be read or used, or too few; every fault is listed.
    """
    return fit_runs(_given(runs), node=node)


def compare_energy(
    runs: Runs, *, fit_on: str | None = None, policy: Policy | None = None
) -> EnergyComparison:
    """Return the errors of the stage model and of every baseline on the runs.

    Args:
        runs: Runs, files of them, or folders of such files.
        fit_on: Runs to fit on, such as `nodes<=8`; if None, each is predicted from all others.
        policy: Method of forecasting power series.

    Raises:
        RunError: Runs that cannot be read or used, or none left to score; every fault is listed.
    """
    return compare_runs(_given(runs), fit_on=fit_on, policy=policy)


def predict_energy(
    calibration: EnergyCalibration | str | Path,
    *,
    nodes: Sequence[int],
    model: str | None = None,
    run: Run | str | Path | None = None,
    samples_per_rank: float | None = None,
    iterations: int = 1,
) -> tuple[EnergyForecast, ...]:
    """Return time and energy of hypothetical runs, one for each number of nodes.

    Args:
        calibration: Or its file.
        nodes: Numbers of nodes, each rank with the same work.
        model: A model of the calibration; or
        run: A run, or its file, whose work per step is used: of any model, measured or
            simulated. Its times and energy are not used.
        samples_per_rank: Batch of one rank, for a `model`; the largest of its runs if None.
        iterations: Steps.

    Raises:
        RunError: A file cannot be used, or the runs do not determine a needed constant.
        UnknownNameError: The calibration has no such model.
    """
    if (model is None) == (run is None):
        raise RunError("predict", ["expected a model of the calibration, or a run, and not both"])
    if faults := [f"nodes: found {count}, expected 1 or more" for count in nodes if count < 1]:
        raise RunError("predict", faults)
    if not isinstance(calibration, EnergyCalibration):
        calibration = read_calibration(calibration)
    if run is None:
        assert model is not None
        runs = [
            described(
                calibration,
                model,
                nodes=count,
                samples_per_rank=samples_per_rank,
                iterations=iterations,
            )
            for count in nodes
        ]
    else:
        given = run if isinstance(run, Run) else read_run(run)
        runs = [at_size(given, count, iterations=iterations) for count in nodes]
    return tuple(forecast(calibration, each) for each in runs)


def _given(runs: Runs) -> tuple[Run, ...]:
    """Return the runs; all files are read before faults are reported together."""
    runs = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    paths: list[Path] = []
    for each in runs:
        if not isinstance(each, Run):
            paths += _files(Path(each))
    named = _named_apart(read_runs(paths), paths)
    return (*(each for each in runs if isinstance(each, Run)), *named)


def _named_apart(runs: Sequence[Run], paths: Sequence[Path]) -> Iterator[Run]:
    """Yield runs; runs with the same name are renamed after their files, for messages."""
    names, stems = Counter(run.name for run in runs), Counter(path.stem for path in paths)
    for run, path in zip(runs, paths, strict=True):
        if names[run.name] == 1:
            yield run
        else:
            yield replace(run, name=path.stem if stems[path.stem] == 1 else str(path))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.rglob("*.json"))
    # `wattree train --out` writes the result next to the run: other files are left out here.
    runs = [each for each in found if not _is_another(each)]
    if not runs:
        raise RunError(str(path), ["found a folder without files of runs, expected *.json in it"])
    return runs


def _is_another(path: Path) -> bool:
    """Return whether a file is valid JSON without a schema, so it is not a run."""
    try:
        with path.open("rb") as file:
            if b"schema" in file.read(_HEAD_BYTES):
                return False  # as `write_run` writes it
        return "schema" not in read_json(path)
    except (OSError, JobError):
        return False  # reported when it is read as a run
