"""`wattree plan`: which strategy, and why."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from wattree.cli.bill import AskedOfRun, asked_of_run
from wattree.cli.job_file import keys_of, print_warnings, read_job
from wattree.cli.output import (
    NOTHING_FITS,
    Calibration,
    JobPath,
    JsonPath,
    ReportPath,
    announce_waits,
    check_is_file,
    check_outputs,
    deliver,
    progress_bars,
    quantity_option,
    tell,
)
from wattree.cli.pictures import PLAN_PLOTS, plot_option, plots_asked, write_plots
from wattree.cli.plan_kept import write_job
from wattree.cli.plan_sizing import nodes_asked, of_length, size
from wattree.cli.plan_software import compare_families, families_asked, refusals
from wattree.cli.request import asked, choice, request_command, switch
from wattree.errors import InfeasibleError, JobError
from wattree.report.html.documents import check_report, write_plan_report

if TYPE_CHECKING:
    from rich.console import Console

    from wattree.job import Job
    from wattree.search import Plan
    from wattree.trace import RunBill


class Objective(StrEnum):
    """Quantity to minimize."""

    TIME = "time"
    ENERGY = "energy"
    COST = "cost"
    CARBON = "carbon"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Arguments and options of `wattree plan`."""

    job: JobPath
    objective: Objective = choice("Quantity to minimize, per step.", value=Objective.TIME)
    pareto: str | None = asked(
        "A,B", "Also show the Pareto front of two objectives, such as time,energy."
    )
    max_devices: int | None = asked("N", "Use at most N devices.", least=1)
    power_cap: str | None = asked(
        "'30 kW'",
        "Highest power of the job's nodes at any moment, before PUE (limits of design and schedule "
        "are those of a site, with PUE). Lower power limits of the devices are tried, too.",
    )
    deadline: str | None = asked(
        "'30 d'", "Upper limit on the time of the run (training.steps, or --tokens)."
    )
    margin: str = asked(
        "P", "Share of each device's memory to keep free, such as '5 %' or 0.", value="5 %"
    )
    top: int = asked("N", "Rows of the table of --full.", value=10, shown=True, least=1)
    allow_approximate: bool = switch(
        "--allow-approximate",
        "Also try phantom layers, which change the function of the model; they are marked.",
    )
    any_software: bool = switch(
        "--any-software", "Also try strategies that the job's software cannot run."
    )
    software: str | None = asked(
        "A,B",
        "Compare these software families, in place of the job's: the best strategy of each. "
        "'wattree catalog software' lists them.",
    )
    out: Path | None = asked(
        "PATH", "Write the job with the strategy that --rank names, for simulate, train and export."
    )
    rank: int = asked("N", "Row of the table that --out writes.", value=1, shown=True, least=1)
    nodes: str | None = asked(
        "A..B",
        "Find the smallest number of nodes in a range (1..64) or list (1,2,4) that meets the "
        "limits of the run; without any, the smallest on which the job fits.",
    )
    tokens: str | None = asked(
        "COUNT", "Length of the run, such as 1T, in place of the job's training.steps."
    )
    samples: str | None = asked("COUNT", "The same in samples, such as 90M.")
    budget: str | None = asked("'2e6 USD'", "Upper limit on the cost of the run.")
    energy_limit: str | None = asked("'20 MWh'", "Upper limit on the energy of the run, with PUE.")
    carbon_limit: str | None = asked("'10 tCO2e'", "Upper limit on the carbon of the run.")
    full: bool = switch("--full", "Print the table, all comparisons and what was rejected.")
    report: ReportPath = None
    plot: list[str] | None = plot_option(PLAN_PLOTS)
    calibration: Calibration = None
    json_path: JsonPath = None


@request_command
def plan(request: PlanRequest) -> None:
    """Rank the strategies that fit, and explain the best one.

    Screens every legal strategy that the job's software can run, and simulates the most promising.
    The strategy in the job file is not read. Exit code 3 if nothing fits (of the files,
    only the JSON is written then).

    Example: wattree plan job.yaml --objective energy --top 5 --json plan.json
    """
    import wattree
    from wattree.search.plan_result import nothing_found
    from wattree.search.sizing import run_of

    began = time.perf_counter()
    plots = plots_asked(request.plot, PLAN_PLOTS)
    outputs = (request.json_path, request.out, request.report, *plots.values())
    check_outputs(*outputs, source=request.job)
    check_is_file("--out", request.out)
    check_report(request.report)
    _check_together(request)
    length = asked_of_run(tokens=request.tokens, samples=request.samples, shift=None)
    families = None if request.software is None else families_asked(request.software)
    nodes = None if request.nodes is None else nodes_asked(request.nodes)
    asked = _asked(request)
    varied = () if nodes is None else ("cluster.fabric: ",)
    loaded = of_length(read_job(request.job, without=varied, reads_strategy=False), length)
    _tell_of_length(_limits(request), loaded)
    announce_waits()
    if nodes is not None:
        _size(loaded, request, nodes, asked)
        return
    if families is not None:
        _compare(loaded, request, families, asked)
        return
    try:
        with progress_bars() as progress:
            found = wattree.plan(loaded, **asked, progress=progress)
    except InfeasibleError as error:
        print_warnings(request.job, error.warnings)
        wall_s = time.perf_counter() - began
        nothing = nothing_found(
            error, objective=request.objective.value, source=loaded.source, wall_s=wall_s
        )
        deliver(nothing.as_json, request.json_path, lambda _: None)
        raise
    print_warnings(request.job, found.warnings)
    if found.best is not None and not request.any_software:
        print_warnings(request.job, refusals(loaded, found.best.options))
    written = _kept(request, found, request.rank)
    has_length = length != AskedOfRun() or loaded.training.steps > 1
    run = run_of(loaded, found.best) if has_length and found.best is not None else None
    length_of_run = {} if run is None else {"run": asdict(run)}
    deliver(
        lambda: found.as_json() | length_of_run,
        request.json_path,
        partial(_show, found, request, run),
    )
    _say(written)
    if found.best is None:
        raise typer.Exit(NOTHING_FITS)


def _asked(request: PlanRequest) -> dict[str, Any]:
    """Return the arguments of `plan`."""
    return {
        "objective": request.objective.value,
        "pareto": _pair(request.pareto),
        "max_devices": request.max_devices,
        "power_cap_w": quantity_option("--power-cap", request.power_cap, "w"),
        **_limits(request),
        "margin": _share(request.margin),
        "top": request.top,
        "allow_approximate": request.allow_approximate,
        "any_software": request.any_software,
        "calibration": request.calibration,
    }


def _limits(request: PlanRequest) -> dict[str, float | None]:
    """Return the limits of the run: arguments of `plan`."""
    from wattree.search.objective import RUN_LIMITS

    found = {}
    for argument in RUN_LIMITS:  # such as energy_limit_j of --energy-limit
        name, _, unit = argument.rpartition("_")
        found[argument] = quantity_option(_named(name), getattr(request, name), unit)
    return found


def _named(name: str) -> str:
    """Return an option as people write it."""
    return f"--{name.replace('_', '-')}"


def _check_together(request: PlanRequest) -> None:
    """Refuse options that have no effect together with others, or without them."""
    problems = []
    if request.rank != 1 and request.out is None:
        problems.append("--rank: found without --out, expected both")
    if request.nodes is not None and request.software is not None:
        problems.append("--nodes: found together with --software, expected one of them")
    if request.nodes is not None and request.rank != 1:
        problems.append("--rank: found together with --nodes, which ranks no strategies")
    for name in ("nodes", "software"):
        if getattr(request, name) is not None:
            problems += [
                f"--{other}: found together with --{name}, expected one of them"
                for other in ("full", "pareto")
                if getattr(request, other)
            ]
    if problems:
        raise JobError("options", problems)


def _compare(
    job: Job, request: PlanRequest, names: Sequence[str], asked: Mapping[str, Any]
) -> None:
    """Show the best strategy of each software family, and write the job of one if asked."""
    if request.rank > len(names):
        raise JobError("--rank", [f"found {request.rank}, but --software names {len(names)}"])
    ranked = compare_families(job, names, asked, request.json_path)
    if not ranked:
        raise typer.Exit(NOTHING_FITS)
    if request.rank > len(ranked):
        raise JobError("--rank", [f"found {request.rank}, but {len(ranked)} strategies are ranked"])
    name = list(ranked)[request.rank - 1]
    _say(_kept(request, ranked[name], 1, software=name))


def _tell_of_length(limits: Mapping[str, float | None], job: Job) -> None:
    """Print that limits of the whole run hold for one step, where the run has no length."""
    named = [_named(name.rpartition("_")[0]) for name, most in limits.items() if most is not None]
    if named and job.training.steps == 1:
        words = "the run has one step; --tokens, --samples or training.steps set its length"
        tell(f"wattree: warning: {' and '.join(named)}: {words}")


def _size(job: Job, request: PlanRequest, nodes: Sequence[int], asked: dict[str, Any]) -> None:
    """Find the smallest cluster, and write its job if asked."""
    smallest = size(job, nodes, asked, json_path=request.json_path).smallest
    if smallest is not None and smallest.plan is not None:
        cluster = keys_of(request.job)["cluster"] | {"nodes": smallest.nodes}
        _say(_kept(request, smallest.plan, 1, cluster=cluster))


def _show(found: Plan, request: PlanRequest, run: RunBill | None, console: Console) -> None:
    """Print a plan: one screen, or all of it."""
    from wattree.report import show_plan
    from wattree.search.objective import run_limits

    show_plan(found, console, full=request.full, run=run, most=run_limits(**_limits(request)))


def _kept(request: PlanRequest, found: Plan, rank: int, **others: Any) -> str:
    """Write the report, pictures and job that were requested, and return a line on each."""
    if request.report is not None:
        write_plan_report(request.report, found)
    if request.plot:
        from wattree.report.plots.of_plan import plan_plots

        write_plots(plots_asked(request.plot, PLAN_PLOTS), plan_plots(found.ideas))
    if request.out is None:
        return ""
    return write_job(request.out, request.job, found, rank, **others)


def _say(lines: str) -> None:
    if lines:
        tell(lines)


def _share(text: str) -> float:
    number = text.strip().removesuffix("%").strip()
    try:
        found = float(number) / (100.0 if "%" in text else 1.0)
    except ValueError:
        found = -1.0
    if not 0.0 <= found < 1.0:
        raise JobError("--margin", [f"found '{text}', expected a share such as '5 %' or 0.05"])
    return found


def _pair(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    known = [objective.value for objective in Objective]
    if len(names) != 2 or names[0] == names[1] or not set(names) <= set(known):
        raise JobError(
            "--pareto",
            [f"found '{text}', expected two different ones of {', '.join(known)}: 'time,energy'"],
        )
    return names[0], names[1]
