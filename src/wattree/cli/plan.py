"""`wattree plan`: which strategy, and why."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattree.cli.bill import asked_of_run
from wattree.cli.job_file import print_warnings, read_job
from wattree.cli.output import (
    NOTHING_FITS,
    Calibration,
    JobPath,
    JsonPath,
    ReportPath,
    announce_compilation,
    check_outputs,
    deliver,
    progress_bars,
    quantity_option,
)
from wattree.cli.plan_sizing import nodes_asked, of_length, size
from wattree.cli.request import option, request_command
from wattree.errors import InfeasibleError, JobError
from wattree.report.html.documents import check_report

if TYPE_CHECKING:
    from rich.console import Console

    from wattree.job import Job
    from wattree.search import Plan


class Objective(StrEnum):
    """What is minimized."""

    TIME = "time"
    ENERGY = "energy"
    COST = "cost"
    CARBON = "carbon"


Least = Annotated[Objective, typer.Option(help="Quantity to minimize, per step.")]
Pareto = Annotated[
    str | None, option("A,B", "Also show the Pareto front of two objectives, such as time,energy.")
]
MaxDevices = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Use at most N devices.", show_default=False)
]
PowerCap = Annotated[
    str | None,
    option("W", "Upper limit on the power of the whole job, in W or with a unit: '30 kW'."),
]
Deadline = Annotated[
    str | None,
    option(
        "T",
        "Upper limit on the time of the run (training.steps, or --tokens), in s or with a "
        "unit: '36 h'.",
    ),
]
Margin = Annotated[
    str, option("P", "Share of each device's memory to keep free, such as '5 %' or 0.")
]
Top = Annotated[int, typer.Option(metavar="N", min=1, help="Rows of the table of --full.")]
AllowApproximate = Annotated[
    bool,
    typer.Option(
        "--allow-approximate",
        help="Also try phantom layers, which change the function of the model; they are marked.",
    ),
]


Families = Annotated[
    str | None,
    option(
        "A,B",
        "Compare these software families, in place of the job's: the best strategy of each. "
        "'wattree catalog software' lists them.",
    ),
]
Out = Annotated[
    Path | None,
    option(
        "PATH", "Write the job with the strategy that --rank names, for simulate, train and export."
    ),
]
Rank = Annotated[int, typer.Option(metavar="N", min=1, help="Row of the table that --out writes.")]
Nodes = Annotated[
    str | None,
    option(
        "A..B",
        "Find the smallest number of nodes, such as 1..64, with which the run meets --deadline and "
        "--budget; without these, with which it fits.",
    ),
]
Tokens = Annotated[
    str | None,
    option("COUNT", "Length of the run, such as 1T, in place of the job's training.steps."),
]
Budget = Annotated[
    str | None, option("COST", "Upper limit on the cost of the run, such as '2e6 USD'.")
]
Full = Annotated[
    bool,
    typer.Option("--full", help="Print the table, all comparisons and what was rejected."),
]
AnySoftware = Annotated[
    bool,
    typer.Option("--any-software", help="Also try strategies that the job's software cannot run."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What `wattree plan` is asked."""

    job: JobPath
    objective: Least = Objective.TIME
    pareto: Pareto = None
    max_devices: MaxDevices = None
    power_cap: PowerCap = None
    deadline: Deadline = None
    margin: Margin = "5 %"
    top: Top = 10
    allow_approximate: AllowApproximate = False
    any_software: AnySoftware = False
    software: Families = None
    out: Out = None
    rank: Rank = 1
    nodes: Nodes = None
    tokens: Tokens = None
    budget: Budget = None
    full: Full = False
    report: ReportPath = None
    calibration: Calibration = None
    json_path: JsonPath = None


@request_command
def plan(request: PlanRequest) -> None:
    """Rank the strategies that fit, and explain why the best one wins.

    Every legal strategy for the job's cluster that its software can run is screened, the most
    promising are simulated; the job's own strategy is not read. Exit code 3 if nothing fits (the
    JSON is still written).

    Example: wattree plan job.yaml --objective energy --top 5 --json plan.json
    """
    import wattree
    from wattree.search.plan_result import nothing_found

    began = time.perf_counter()
    check_outputs(request.json_path, request.out, request.report, source=request.job)
    check_report(request.report)
    length = asked_of_run(tokens=request.tokens, samples=None, shift=None)
    loaded = of_length(read_job(request.job), length.tokens)
    asked: dict[str, Any] = {
        "objective": request.objective.value,
        "pareto": _pair(request.pareto),
        "max_devices": request.max_devices,
        "power_cap_w": quantity_option("--power-cap", request.power_cap, "w", may_be_bare=True),
        "deadline_s": quantity_option("--deadline", request.deadline, "s", may_be_bare=True),
        "margin": _share(request.margin),
        "top": request.top,
        "allow_approximate": request.allow_approximate,
        "any_software": request.any_software,
        "calibration": request.calibration,
    }
    if request.budget is not None and request.nodes is None:
        raise JobError("--budget", ["found without --nodes, expected both"])
    announce_compilation()
    if request.nodes is not None:
        if request.software is not None:
            raise JobError("--nodes", ["found together with --software, expected one of them"])
        _size(loaded, request, asked)
        return
    if request.software is not None:
        _compare(loaded, request, asked)
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
        deliver(nothing.as_json(), request.json_path, lambda _: None)
        raise
    print_warnings(request.job, found.warnings)
    if request.out is not None:
        _write_job(request.out, request.job, found, request.rank)
    if request.report is not None:
        from wattree.report.html.documents import write_plan_report

        write_plan_report(request.report, found)
    deliver(found.as_json(), request.json_path, partial(_show, found, request))
    if found.best is None:
        raise typer.Exit(NOTHING_FITS)


def _compare(job: Job, request: PlanRequest, asked: Mapping[str, Any]) -> None:
    """Show the best strategy of each of the named software families, the best first."""
    import wattree
    from wattree.cost import SOFTWARE
    from wattree.errors import UnknownNameError
    from wattree.report import show_software
    from wattree.search.objective import objective_of

    plans: dict[str, Plan | None] = {}
    for name in (name.strip() for name in str(request.software).split(",")):
        if name not in SOFTWARE:
            raise UnknownNameError(kind="software", name=name, known=SOFTWARE, where="--software")
        plans[name] = None
        with progress_bars() as progress, suppress(InfeasibleError):
            plans[name] = wattree.plan(replace(job, software=name), **asked, progress=progress)

    def value(name: str) -> float:
        best = None if (plan := plans[name]) is None else plan.best
        return math.inf if best is None else objective_of(best.result, request.objective.value)

    plans = {name: plans[name] for name in sorted(plans, key=value)}
    best = next(iter(plans))
    if request.out is not None and (plan := plans[best]) is not None:
        _write_job(request.out, request.job, plan, request.rank, software=best)
    found = {name: None if plan is None else plan.as_json() for name, plan in plans.items()}
    deliver({"software": found}, request.json_path, lambda console: show_software(plans, console))


def _size(job: Job, request: PlanRequest, asked: dict[str, Any]) -> None:
    """Find the smallest cluster, and write its job if asked."""
    budget_usd = quantity_option("--budget", request.budget, "usd", may_be_bare=True)
    found = size(
        job,
        nodes_asked(str(request.nodes)),
        asked,
        budget_usd=budget_usd,
        json_path=request.json_path,
    )
    from wattree.job.written import mapping_of

    smallest = found.smallest
    if request.out is not None and smallest is not None and smallest.plan is not None:
        cluster = mapping_of(request.job)["cluster"] | {"nodes": smallest.nodes}
        _write_job(request.out, request.job, smallest.plan, request.rank, cluster=cluster)


def _show(found: Plan, request: PlanRequest, console: Console) -> None:
    """Print a plan: one screen, or all of it."""
    from wattree.report import show_plan

    show_plan(found, console, full=request.full)


def _write_job(out: Path, job: Path, found: Plan, rank: int, **others: Any) -> None:
    """Write the job with one of the ranked strategies, and with other values of its keys."""
    from wattree.files import write_atomic
    from wattree.job.written import mapping_of, yaml_text
    from wattree.strategy.described import describe_options

    if rank > len(found.ideas):
        raise JobError("--rank", [f"found {rank}, but {len(found.ideas)} strategies are ranked"])
    chosen = found.ideas[rank - 1][0]
    mapping = mapping_of(job) | others | {"strategy": describe_options(chosen.options)}
    head = f"Written by `wattree plan`: number {rank} by {found.objective}, {chosen.label}."
    write_atomic(out, yaml_text(mapping, head=head))


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
