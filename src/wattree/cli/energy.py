"""`wattree energy`: constants from runs, predictions from constants, and the comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattree.cli.job_file import read_job
from wattree.cli.output import (
    JsonPath,
    check_outputs,
    counts_option,
    deliver,
    quantity_option,
    tell,
)
from wattree.cli.request import asked, request_command

if TYPE_CHECKING:
    from wattree.energy.calibration import EnergyCalibration
    from wattree.energy.predict import EnergyForecast
    from wattree.errors import RunError

energy = typer.Typer(
    name="energy",
    help="Fit, predict and compare the energy of training runs by stage.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUNS...",
        help="Files of runs, as `wattree measure --out` writes them, or folders of such files.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRequest:
    """Arguments and options of `wattree energy fit`."""

    runs: Runs
    out: Path | None = asked("PATH", "File of the calibration to write.")
    node: str | None = asked("KIND", "Kind of node to fit, where runs are of several.")
    json_path: JsonPath = None


@energy.command()
@request_command
def fit(request: FitRequest) -> None:
    """Find the constants of the three stages from runs.

    Needs runs of one kind of node: idle, the loader alone, resident data, collectives alone, and
    training on a few sizes. The more stages are measured alone, the more constants can be
    distinguished; the others are listed.

    Example: wattree energy fit runs/ --out calibration.yaml
    """
    import wattree
    from wattree.energy.calibration_file import calibration_as_json, write_energy_calibration
    from wattree.report.energy_models_text import show_calibration

    for run in request.runs:
        check_outputs(request.out, request.json_path, source=run)
    calibration = wattree.fit_energy(request.runs, node=request.node)
    if request.out is not None:
        write_energy_calibration(calibration, request.out)
    deliver(
        lambda: calibration_as_json(calibration),
        request.json_path,
        lambda console: show_calibration(calibration, console),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest:
    """Arguments and options of `wattree energy predict`."""

    calibration: Path = asked("PATH", "File that `wattree energy fit` wrote.", value=MISSING)
    nodes: str = asked("N[,N...]", "Numbers of nodes, such as 16,32,64.", value=MISSING)
    model: str | None = asked("NAME", "A model of the calibration.")
    run: Path | None = asked(
        "FILE", "Or a file of a run of any model, measured or simulated, whose work counts."
    )
    job: Path | None = asked(
        "JOB",
        "Or a job file of any model, data-parallel, whose step is simulated: what one "
        "rank does in it counts, not its times, energy or number of ranks.",
    )
    batch: float | None = asked(
        "N", "With --model: samples of one rank in a step; the largest of the model's runs."
    )
    iterations: int = asked("N", "Steps of the run.", value=1, shown=True, least=1)
    bandwidth: str | None = asked(
        "RATE", "Rate of a rank's traffic to other nodes, such as '10 Gbit/s', if no run shows it."
    )
    latency: str | None = asked(
        "TIME", "With --bandwidth: time of an empty message, such as '30 us'."
    )
    json_path: JsonPath = None


@energy.command()
@request_command
def predict(request: PredictRequest) -> None:
    """Predict time and energy by stage for other nodes or models.

    Each rank does the work of a rank in the fitted runs (--model), in FILE (--run), or in the
    simulated step of JOB (--job); the global batch grows with the nodes.

    Example: wattree energy predict --calibration calibration.yaml --model resnet-50 --nodes 16,32
    """
    from wattree.report.energy_models_text import show_forecasts
    from wattree.trace.plain import as_plain

    _check_asked(request)
    check_outputs(request.json_path, source=request.calibration)
    counts = counts_option("--nodes", request.nodes, "16,32")
    found, refused = _forecasts(request, counts, _with_network(request))
    deliver(
        lambda: {"forecasts": [as_plain(each) for each in found]},
        request.json_path,
        lambda console: show_forecasts(found, console),
    )
    for error in refused:
        tell(f"wattree: {error}")
    if refused:
        raise typer.Exit(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """Arguments and options of `wattree energy compare`."""

    runs: Runs
    fit_on: str | None = asked(
        "WHICH",
        "Runs to fit on, such as 'nodes<=8'; the other training runs are scored. Without "
        "it, each is predicted from all others.",
    )
    seen: float = asked(
        "SHARE", "Share of each power series that forecasts start from.", value=0.5, shown=True
    )
    refit: int | None = asked(
        "N",
        "Forecast N readings at a time, and fit again with them; by default the rest of the "
        "series is forecast at once.",
    )
    json_path: JsonPath = None


@energy.command()
@request_command
def compare(request: CompareRequest) -> None:
    """Compare the stage model with simpler models of energy.

    The simpler models: four linear ones, a non-linear one, rated power times utilization, and
    forecasts of power series (AR, SES, ARIMA). Errors are listed by model, by number of nodes and
    by stage, in one table per kind of node, including where the stage model is worse.

    Example: wattree energy compare runs/ --fit-on 'nodes<=8'
    """
    import wattree
    from wattree.energy.series import Policy
    from wattree.report.energy_models_text import show_comparison

    for run in request.runs:
        check_outputs(request.json_path, source=run)
    found = wattree.compare_energy(
        request.runs,
        fit_on=request.fit_on,
        policy=Policy(seen=request.seen, refit_every=request.refit),
    )
    deliver(found.as_json, request.json_path, lambda console: show_comparison(found, console))


def _forecasts(
    request: PredictRequest, counts: Sequence[int], constants: EnergyCalibration
) -> tuple[list[EnergyForecast], list[RunError]]:
    """Return the forecasts that can be made, and why the others cannot.

    Raises:
        RunError: None can.
    """
    from wattree.errors import RunError

    found: list[EnergyForecast] = []
    refused: list[RunError] = []
    for count in counts:
        try:
            found += _forecast(request, count, constants)
        except RunError as error:
            refused.append(error)
    if refused and not found:
        raise refused[0]
    return found, refused


def _forecast(
    request: PredictRequest, count: int, constants: EnergyCalibration
) -> tuple[EnergyForecast, ...]:
    if request.job is not None:
        from wattree.predict import forecast_job

        job = read_job(request.job)
        return forecast_job(constants, job, nodes=[count], iterations=request.iterations)
    from wattree.energy.commands import predict_energy

    return predict_energy(
        constants,
        nodes=[count],
        model=request.model,
        run=request.run,
        samples_per_rank=request.batch,
        iterations=request.iterations,
    )


def _with_network(request: PredictRequest) -> EnergyCalibration:
    """Return a calibration from a file, with a network that is given.

    Raises:
        RunError: It cannot be used, or a latency without a bandwidth.
    """
    from wattree.energy.calibration import with_network
    from wattree.energy.calibration_file import read_calibration
    from wattree.errors import RunError

    calibration = read_calibration(request.calibration)
    bytes_per_s = quantity_option("--bandwidth", request.bandwidth, "bytes_per_s")
    latency_s = quantity_option("--latency", request.latency, "s")
    if bytes_per_s is None:
        if latency_s is not None:
            raise RunError("--latency", ["found one without --bandwidth, expected both"])
        return calibration
    return with_network(calibration, bytes_per_s=bytes_per_s, latency_s=latency_s or 0.0)


def _check_asked(request: PredictRequest) -> None:
    """Check that one thing is asked for, and that samples are some.

    Raises:
        RunError: None is given, or several are, or a batch together with an input that has its own.
    """
    from wattree.errors import RunError

    asked = {"--model": request.model, "--run": request.run, "--job": request.job}
    given = [name for name, value in asked.items() if value is not None]
    batch = request.batch
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise RunError("predict", [f"found {found}, expected one of {', '.join(asked)}"])
    if batch is not None and request.model is None:
        raise RunError("--batch", [f"found {given[0]}, which states its batch; expected --model"])
    if batch is not None and not (math.isfinite(batch) and batch >= 1):
        raise RunError("--batch", [f"found {batch:g}, expected 1 or more"])
