"""`wattree simulate`: one strategy in full detail."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from wattree.cli.bill import asked_of_run
from wattree.cli.job_file import print_warnings, read_job
from wattree.cli.output import (
    NOTHING_FITS,
    Calibration,
    JobPath,
    JsonPath,
    MutualSlowdown,
    ReportPath,
    Sharing,
    SharingOption,
    announce_waits,
    check_is_file,
    check_outputs,
    deliver,
    tell,
    trace_option,
)
from wattree.cli.pictures import STEP_PLOTS, plot_option, plots_asked, write_plots
from wattree.cli.plan_sizing import of_length
from wattree.cli.request import asked, choice, request_command, switch
from wattree.errors import JobError
from wattree.report.html.documents import check_report

if TYPE_CHECKING:
    from rich.console import Console

    from wattree.job import Job
    from wattree.predict import Prediction
    from wattree.trace import Result

#: Value of `--power-limit` that stands for the usual limits.
SWEEP = "sweep"


class Fold(StrEnum):
    """Whether ranks that do the same are simulated once."""

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateRequest:
    """Arguments and options of `wattree simulate`."""

    job: JobPath
    json_path: JsonPath = None
    trace_path: Path | None = trace_option("streams, memory, power, link load")
    calibration: Calibration = None
    power_limit: list[str] | None = asked(
        "POWER",
        "Power limit of each device, such as '400 W'; replaces the job's. Several limits "
        "('300 W, 400 W') or 'sweep' (the usual ones) give a table of all.",
    )
    fold: Fold = choice("Simulate identical ranks once (on), or every rank (off).", value=Fold.ON)
    sharing: SharingOption = Sharing.MAX_MIN
    mutual_slowdown: MutualSlowdown = True
    memory: str | None = asked(
        "RANKS",
        "Show the live tensors when the memory of these ranks peaks: 'fullest', or a "
        "rank class of the trace, such as 'stage 0'.",
    )
    tokens: str | None = asked(
        "COUNT",
        "Also report energy, cost and carbon of a whole run of COUNT tokens, such as 1T.",
        "--tokens",
        "--target-tokens",
    )
    samples: str | None = asked("COUNT", "The same for a run of COUNT samples, such as 90M.")
    shift: str | None = asked(
        "TIME",
        "Also report the best hour to start a run of this length, such as 24h, by the job's "
        "series of prices or carbon (energy: series). 'run' takes the length of --tokens or "
        "--samples.",
    )
    full: bool = switch(
        "--full", "Print memory by category, energy by class and component, power, and evidence."
    )
    report: ReportPath = None
    plot: list[str] | None = plot_option(STEP_PLOTS)

    def executed(self) -> dict[str, Any]:
        """Return how steps are executed, as arguments of `wattree.simulate`."""
        return {
            "calibration": self.calibration,
            "fold": self.fold is Fold.ON,
            "sharing": self.sharing.value,
            "mutual_slowdown": self.mutual_slowdown,
        }


@request_command
def simulate(request: SimulateRequest) -> None:
    """Predict time, memory, energy and cost of one training step.

    Simulates the job's strategy; 'wattree plan' finds one. Exit code 3 if it does not fit in
    memory (the JSON is still written).

    Example: wattree simulate job.yaml --trace trace.json --json result.json
    """
    plots = plots_asked(request.plot, STEP_PLOTS)
    outputs = (request.json_path, request.trace_path, request.report, *plots.values())
    check_outputs(*outputs, source=request.job)
    check_report(request.report)
    check_is_file("--trace", request.trace_path)
    asked = asked_of_run(tokens=request.tokens, samples=request.samples, shift=request.shift)
    loaded = of_length(read_job(request.job), asked)
    if request.power_limit:
        from wattree.job.idle import idle_limits

        limits_w = _limits_w(loaded, ",".join(request.power_limit))
        for line in idle_limits(loaded.cluster, limits_w, name="--power-limit"):
            tell(f"wattree: warning: {line}")
        if len(limits_w) != 1:
            _refuse_with_sweep(request)
            _sweep(request, loaded, limits_w)
            return
        loaded = loaded.capped(limits_w[0])
    announce_waits(executes=not isinstance(loaded.strategy, str))  # 'auto' is refused
    prediction = _predicted(request, loaded)
    print_warnings(request.job, prediction.warnings)
    _deliver(request, prediction, asked.answered(loaded, prediction.result))


def _deliver(request: SimulateRequest, prediction: Prediction, result: Result) -> None:
    """Write and show a prediction, and its result with the requested figures of whole runs.

    Raises:
        Exit: It does not fit in memory.
    """
    if request.trace_path is not None:
        from wattree.report.perfetto import write_trace

        shown = prediction.shared_fabric_step or prediction
        own = prediction.curves if prediction.shared_fabric_step is None else {}
        write_trace(request.trace_path, shown.trace, power=own or {"cluster": shown.power})
    from rich.text import Text

    from wattree.report import show_result

    def show(console: Console) -> None:
        if not result.memory.fits:  # before the figures of a step that there is not
            line = Text(f"{result.model} {_shortage(result)}", style="bold red")
            console.print(line, soft_wrap=True)
        show_result(
            result,
            console,
            full=request.full,
            memory=request.memory is not None,
            strategy=_in_words(prediction),
        )

    deliver(
        lambda: {**result.as_json(), "warnings": list(prediction.warnings)},
        request.json_path,
        show,
    )
    _write_pictures(request, prediction)
    if not result.memory.fits:
        if str(request.json_path) == "-":  # only JSON goes to standard output
            tell(f"wattree: {_shortage(result)}")
        raise typer.Exit(NOTHING_FITS)


def _in_words(prediction: Prediction) -> str | None:
    """Return the words of `plan` for the simulated strategy; None where it is a tree."""
    from wattree.strategy import StrategyOptions, options_in_words

    chosen = prediction.strategy
    return options_in_words(chosen) if isinstance(chosen, StrategyOptions) else None


def _write_pictures(request: SimulateRequest, prediction: Prediction) -> None:
    """Write the report and the pictures that are asked for.

    Raises:
        JobError: The step has no such picture: no link is used, or no power is known.
    """
    if request.report is not None:
        from wattree.report.html.documents import write_step_report

        write_step_report(request.report, prediction)
    asked = plots_asked(request.plot, STEP_PLOTS)
    if asked:
        from wattree.report.plots import plots_of

        write_plots(asked, plots_of(prediction).values())


def _limits_w(job: Job, text: str) -> tuple[float, ...]:
    """Return the limits that an option names; none for `sweep`, where the cluster chooses."""
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


def _refuse_with_sweep(request: SimulateRequest) -> None:

    of_one_step = {
        "--trace": request.trace_path,
        "--memory": request.memory,
        "--report": request.report,
        "--plot": request.plot,
        "--tokens": request.tokens,
        "--samples": request.samples,
        "--shift": request.shift,
    }
    for name, value in of_one_step.items():
        if value is not None:
            raise JobError(
                name, ["is of one step, but --power-limit names several; give one limit"]
            )


def _sweep(request: SimulateRequest, job: Job, limits_w: tuple[float, ...]) -> None:
    import wattree
    from wattree.report import show_power_sweep

    announce_waits(executes=not isinstance(job.strategy, str))
    sweep = wattree.power_sweep(job, limits_w, **request.executed())
    # Those of limits have been printed under the option's name.
    print_warnings(
        Path(job.source), (each for each in sweep.warnings if not each.startswith("limits_w:"))
    )
    if not sweep.fits:
        tell(
            "wattree: does not fit in memory, whatever the power limit; without --power-limit "
            "the command says what would help"
        )
    deliver(sweep.as_json, request.json_path, lambda console: show_power_sweep(sweep, console))
    if not sweep.fits:
        raise typer.Exit(NOTHING_FITS)


def _shortage(result: Result) -> str:
    from wattree.report.pools_text import shortages, tier_shortages
    from wattree.units import format_bytes

    memory = result.memory
    found = f"{format_bytes(memory.peak_bytes)} of {format_bytes(memory.capacity_bytes)}"
    fixes = "; ".join(fix.change for fix in memory.fixes)
    if result.generation is not None:
        fixes = "more tensor ranks or stages, fewer sequences, or shorter ones"
    fixes = (
        fixes
        or "more devices, smaller micro-batches, or what 'wattree plan' finds for this cluster"
    )
    behind = tier_shortages(result.tiers)
    on_devices = memory.peak_bytes > memory.capacity_bytes or not behind
    devices = (shortages(result.pools) or f"needs {found} per device") if on_devices else ""
    needs = "; ".join(filter(None, (devices, behind)))
    return f"does not fit in memory: {needs}; try: {fixes}"


def _predicted(request: SimulateRequest, job: Job) -> Prediction:
    import wattree

    prediction = wattree.simulate(job, memory_of=request.memory, **request.executed())
    if prediction.result.memory.fits or prediction.result.workload != "train":
        return prediction  # changes that help keep less for backward passes
    from wattree.search import with_memory_fixes

    return with_memory_fixes(job, prediction, calibration=request.calibration)
