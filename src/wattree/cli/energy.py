"""`wattree energy`: constants from runs, predictions from constants, and the comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattree.cli.job_file import read_job
from wattree.cli.output import JsonPath, check_outputs, deliver, quantity_option

if TYPE_CHECKING:
    from wattree.energy.calibration import EnergyCalibration
    from wattree.energy.predict import EnergyForecast
    from wattree.errors import RunError

__all__ = ["energy"]

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


@energy.command()
def fit(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="File of the calibration to write.", show_default=False),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Kind of node to fit, where runs are of several.",
            show_default=False,
        ),
    ] = None,
    json_path: JsonPath = None,
) -> None:
    """Find the constants of the three stages from runs.

    Runs of one kind of node: idle, the loader alone, resident data,
    collectives alone, and training on a few sizes. The more of them are
    isolated, the more constants can be told apart; what cannot is said.

    Example: wattree energy fit runs/ --out calibration.yaml
    """
    import wattree
    from wattree.energy.calibration_file import calibration_as_json, write_energy_calibration
    from wattree.report.energy_models_text import show_calibration

    for run in runs:
        check_outputs(out, json_path, source=run)
    calibration = wattree.fit_energy(runs, node=node)
    if out is not None:
        write_energy_calibration(calibration, out)
    deliver(
        calibration_as_json(calibration),
        json_path,
        lambda console: show_calibration(calibration, console),
    )


@energy.command()
def predict(  # noqa: PLR0917 - typer passes options by name
    calibration: Annotated[
        Path,
        typer.Option(
            metavar="PATH", help="File that `wattree energy fit` wrote.", show_default=False
        ),
    ],
    nodes: Annotated[
        str,
        typer.Option(
            metavar="N[,N...]", help="Numbers of nodes, such as 16,32,64.", show_default=False
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A model of the calibration.", show_default=False),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Or a file of a run of any model, measured or simulated, whose work counts.",
            show_default=False,
        ),
    ] = None,
    job: Annotated[
        Path | None,
        typer.Option(
            metavar="JOB",
            help="Or a job file of any model, data-parallel, whose step is simulated: what one "
            "rank does in it counts, not its times, energy or number of ranks.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="With --model: samples of one rank in a step; the largest of the model's runs.",
            show_default=False,
        ),
    ] = None,
    iterations: Annotated[int, typer.Option(metavar="N", help="Steps of the run.")] = 1,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="What a rank sends to other nodes, such as '10 Gbit/s', where no run tells it.",
            show_default=False,
        ),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="With --bandwidth: of one message, such as '30 us'.",
            show_default=False,
        ),
    ] = None,
    json_path: JsonPath = None,
) -> None:
    """Predict time and energy by stage on other numbers of nodes, or of other models.

    Every rank does the work that it did in the runs of the fit, in FILE, or
    in the simulated step of JOB: the global batch grows with the nodes.

    Example: wattree energy predict --calibration calibration.yaml --model resnet-50 --nodes 16,32
    """
    from wattree.report.energy_models_text import show_forecasts
    from wattree.trace.plain import as_plain

    _check_asked(model, run, job, batch)
    _check_counts(batch, iterations)
    check_outputs(json_path, source=calibration)
    counts = _counts(nodes)
    constants = _with_network(calibration, bandwidth, latency)

    def predicted(count: int) -> tuple[EnergyForecast, ...]:
        if job is not None:
            from wattree.predict import forecast_job

            return forecast_job(constants, read_job(job), nodes=[count], iterations=iterations)
        from wattree.energy.commands import predict_energy

        return predict_energy(
            constants,
            nodes=[count],
            model=model,
            run=run,
            samples_per_rank=batch,
            iterations=iterations,
        )

    found, refused = _each(counts, predicted)
    deliver(
        {"forecasts": [as_plain(each) for each in found]},
        json_path,
        lambda console: show_forecasts(found, console),
    )
    for error in refused:
        typer.echo(f"wattree: {error}", err=True)
    if refused:
        raise typer.Exit(2)


@energy.command()
def compare(
    runs: Runs,
    fit_on: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH",
            help="Runs to fit on, such as 'nodes<=8'; the other training runs are scored. Without "
            "it, each is predicted from all others.",
            show_default=False,
        ),
    ] = None,
    seen: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Part of each power series that forecasts see first."),
    ] = 0.5,
    refit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Readings that are forecast before they are seen and fitted too; without it, the "
            "rest of the series at once.",
            show_default=False,
        ),
    ] = None,
    json_path: JsonPath = None,
) -> None:
    """Compare the stage model with simpler models of energy on runs.

    Four linear models, a non-linear one, rated power times utilisation, and
    forecasts of power series (AR, SES, ARIMA), by model, by number of nodes
    and by stage. Each kind of node is a table of its own. Where the stage
    model is not ahead, the table says so.

    Example: wattree energy compare runs/ --fit-on 'nodes<=8'
    """
    import wattree
    from wattree.energy.series import Policy
    from wattree.report.energy_models_text import show_comparison

    for run in runs:
        check_outputs(json_path, source=run)
    found = wattree.compare_energy(runs, fit_on=fit_on, policy=Policy(seen=seen, refit_every=refit))
    deliver(found.as_json(), json_path, lambda console: show_comparison(found, console))


def _each(
    counts: Sequence[int], predicted: Callable[[int], tuple[EnergyForecast, ...]]
) -> tuple[tuple[EnergyForecast, ...], list[RunError]]:
    """Return the forecasts that can be made, and why the others cannot.

    Raises:
        RunError: None can.
    """
    from wattree.errors import RunError

    found: list[EnergyForecast] = []
    refused: list[RunError] = []
    for count in counts:
        try:
            found += predicted(count)
        except RunError as error:
            refused.append(error)
    if refused and not found:
        raise refused[0]
    return tuple(found), refused


def _with_network(path: Path, bandwidth: str | None, latency: str | None) -> EnergyCalibration:
    """Return a calibration from a file, with a network that is given.

    Raises:
        RunError: It cannot be used, or a latency without a bandwidth.
    """
    from wattree.energy.calibration_file import read_calibration
    from wattree.energy.network import with_network
    from wattree.errors import RunError

    calibration = read_calibration(path)
    bytes_per_s = quantity_option("--bandwidth", bandwidth, "bytes_per_s")
    latency_s = quantity_option("--latency", latency, "s")
    if bytes_per_s is None:
        if latency_s is not None:
            raise RunError("--latency", ["found one without --bandwidth, expected both"])
        return calibration
    return with_network(calibration, bytes_per_s=bytes_per_s, latency_s=latency_s or 0.0)


def _check_asked(
    model: str | None, run: Path | None, job: Path | None, batch: float | None
) -> None:
    """Check that one thing is asked for.

    Raises:
        RunError: None is, or several are, or a batch beside what has its own.
    """
    from wattree.errors import RunError

    asked = {"--model": model, "--run": run, "--job": job}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise RunError("predict", [f"found {found}, expected one of {', '.join(asked)}"])
    if batch is not None and model is None:
        raise RunError("--batch", [f"found {given[0]}, which says its batch; expected --model"])


def _check_counts(batch: float | None, iterations: int) -> None:
    """Check samples and steps.

    Raises:
        RunError: There are none.
    """
    from wattree.errors import RunError

    if batch is not None and not (math.isfinite(batch) and batch >= 1):
        raise RunError("--batch", [f"found {batch:g}, expected 1 or more"])
    if iterations < 1:
        raise RunError("--iterations", [f"found {iterations}, expected 1 or more"])


def _counts(text: str) -> tuple[int, ...]:
    """Return whole numbers from a list such as `16,32`.

    Raises:
        RunError: It is no such list.
    """
    from wattree.errors import RunError

    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() for word in words):
        raise RunError("--nodes", [f"found '{text}', expected numbers such as 16,32"])
    return tuple(map(int, words))
