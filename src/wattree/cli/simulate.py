"""`wattree simulate`: one strategy in full detail."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattree.cli.bill import asked_of_run
from wattree.cli.job_file import read_job, tell_warnings
from wattree.cli.output import (
    Calibration,
    JobPath,
    JsonPath,
    MutualSlowdown,
    Sharing,
    SharingOption,
    announce_compilation,
    check_outputs,
    check_trace_path,
    deliver,
    trace_option,
)

if TYPE_CHECKING:
    from wattree.job import Job
    from wattree.predict import Prediction
    from wattree.trace import Result

__all__ = ["SWEEP", "simulate"]

#: Value of `--power-limit` that stands for the usual limits.
SWEEP = "sweep"


class Fold(StrEnum):
    """Whether ranks that do the same are simulated once."""

    ON = "on"
    OFF = "off"


def simulate(  # noqa: PLR0917 - typer passes options by name
    job: JobPath,
    json_path: JsonPath = None,
    trace_path: Annotated[Path | None, trace_option("streams, memory, power, link load")] = None,
    calibration: Calibration = None,
    power_limit: Annotated[
        str | None,
        typer.Option(
            metavar="POWER",
            help="Cap on every device, such as '400 W'; replaces the job's. Several ('300 W, "
            "400 W'), or 'sweep' for the usual ones: a table, and where the curve turns.",
            show_default=False,
        ),
    ] = None,
    fold: Annotated[
        Fold, typer.Option(help="Simulate ranks that do the same once, or every rank.")
    ] = Fold.ON,
    sharing: SharingOption = Sharing.MAX_MIN,
    mutual_slowdown: MutualSlowdown = True,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="RANKS",
            help="Show the tensors alive when the memory of these ranks peaks: 'fullest', or a "
            "rank class of the trace, such as 'stage 0'.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens",
            "--target-tokens",
            metavar="COUNT",
            help="Also tell energy, money and carbon of a run to so many tokens, such as 1T.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[
        str | None,
        typer.Option(
            metavar="COUNT",
            help="The same for a run to so many samples, such as 90M.",
            show_default=False,
        ),
    ] = None,
    shift: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Also tell at which hour of the job's series (energy: series) a run of that "
            "length would best start, such as 24h; 'run' for that of --tokens or --samples.",
            show_default=False,
        ),
    ] = None,
    power_plot: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Write a picture (PNG) of power over the step by component; needs matplotlib.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Predict time, memory, energy and cost of one training step.

    The job's strategy is compiled and played; 'wattree plan' finds one. Exit code 2 if it does
    not fit in memory (the JSON is still written).

    Example: wattree simulate job.yaml --trace trace.json --json result.json
    """
    check_outputs(json_path, trace_path, power_plot, source=job)
    check_trace_path(trace_path)
    asked = asked_of_run(tokens=tokens, samples=samples, shift=shift)
    if power_plot is not None:
        from wattree.report.power_plot import check_plotting

        check_plotting(power_plot)
    loaded = read_job(job)
    if power_limit is not None:
        limits_w = _limits_w(loaded, power_limit)
        _tell_idle_limits(loaded, limits_w)
        if len(limits_w) != 1:
            _refuse_beside_sweep(
                {
                    "--trace": trace_path,
                    "--memory": memory,
                    "--power-plot": power_plot,
                    "--tokens": tokens,
                    "--samples": samples,
                    "--shift": shift,
                }
            )
            _sweep(
                loaded,
                limits_w,
                json_path=json_path,
                calibration=calibration,
                fold=fold,
                sharing=sharing,
                mutual_slowdown=mutual_slowdown,
            )
            return
        loaded = loaded.capped(limits_w[0])
    announce_compilation()
    prediction = _predicted(
        loaded,
        calibration,
        fold=fold,
        sharing=sharing,
        mutual_slowdown=mutual_slowdown,
        memory_of=memory,
    )
    tell_warnings(job, prediction.warnings)
    if trace_path is not None:
        from wattree.report.perfetto import write_trace

        shown = prediction.beside or prediction
        own = prediction.curves if prediction.beside is None else {}
        write_trace(trace_path, shown.trace, power=own or {"cluster": shown.power})
    from wattree.report import show_result

    result = asked.answered(loaded, prediction.result)
    if power_plot is not None and result.power is not None:
        from wattree.report.power_plot import write_power_plot

        write_power_plot(power_plot, result.power, title=f"{result.model} on {result.cluster}")
    deliver(
        {**result.as_json(), "warnings": list(prediction.warnings)},
        json_path,
        lambda console: show_result(result, console, memory=memory is not None),
    )
    if not result.memory.fits:
        if str(json_path) == "-":  # only JSON goes to standard output
            typer.echo(f"wattree: {_shortage(result)}", err=True)
        raise typer.Exit(2)


def _limits_w(job: Job, text: str) -> tuple[float, ...]:
    """Return the limits that an option names; none for `sweep`, where the cluster chooses."""
    from wattree.errors import JobError
    from wattree.job import with_power_limit

    if text.strip() == SWEEP:
        return ()
    found = []
    for part in text.split(","):
        if part.strip().isalpha():
            raise JobError(
                "--power-limit",
                [f"found '{part.strip()}', expected '{SWEEP}' alone, or limits such as '400 W'"],
            )
        capped = with_power_limit(job.cluster, part.strip(), source="--power-limit")
        assert capped.power_limit_w is not None
        found.append(capped.power_limit_w)
    return tuple(dict.fromkeys(found))


def _tell_idle_limits(job: Job, limits_w: tuple[float, ...]) -> None:
    """Warn of limits at or above what all devices are rated at, but for the rated power itself."""
    rated_w = max(pool.node.device.tdp_w for pool in job.cluster.pools)
    for limit_w in limits_w:
        if limit_w > rated_w:
            typer.echo(
                f"wattree: warning: --power-limit: {limit_w:g} W has no effect: the devices are "
                f"rated at {rated_w:g} W; set it below that",
                err=True,
            )


def _refuse_beside_sweep(of_one_step: Mapping[str, object]) -> None:
    from wattree.errors import JobError

    for option, value in of_one_step.items():
        if value is not None:
            raise JobError(
                option, ["is of one step, but --power-limit names several; give one limit"]
            )


def _sweep(
    job: Job,
    limits_w: tuple[float, ...],
    *,
    json_path: Path | None,
    calibration: Path | None,
    fold: Fold,
    sharing: Sharing,
    mutual_slowdown: bool,
) -> None:
    import wattree
    from wattree.report import show_power_sweep

    announce_compilation()
    sweep = wattree.power_sweep(
        job,
        limits_w,
        calibration=calibration,
        fold=fold is Fold.ON,
        sharing=sharing.value,
        mutual_slowdown=mutual_slowdown,
    )
    tell_warnings(Path(job.source), sweep.warnings)
    deliver(sweep.as_json(), json_path, lambda console: show_power_sweep(sweep, console))
    if not sweep.fits:
        typer.echo(
            "wattree: does not fit in memory, whatever the power limit; without --power-limit "
            "the command says what would help",
            err=True,
        )
        raise typer.Exit(2)


def _shortage(result: Result) -> str:
    from wattree.report.pools_text import shortages
    from wattree.units import format_bytes

    memory = result.memory
    found = f"{format_bytes(memory.peak_bytes)} of {format_bytes(memory.capacity_bytes)}"
    fixes = "; ".join(fix.change for fix in memory.fixes)
    needs = shortages(result.pools) or f"needs {found} per device"
    return f"does not fit in memory: {needs}" + (f"; try: {fixes}" if fixes else "")


def _predicted(
    job: Job,
    calibration: Path | None,
    *,
    fold: Fold,
    sharing: Sharing,
    mutual_slowdown: bool,
    memory_of: str | None,
) -> Prediction:
    import wattree

    prediction = wattree.simulate(
        job,
        calibration=calibration,
        fold=fold is Fold.ON,
        sharing=sharing.value,
        memory_of=memory_of,
        mutual_slowdown=mutual_slowdown,
    )
    if prediction.result.memory.fits:
        return prediction
    from wattree.search import with_memory_fixes

    return with_memory_fixes(job, prediction, calibration=calibration)
