"""`wattree plan`: which strategy, and why."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from wattree.cli.job_file import print_warnings, read_job
from wattree.cli.output import (
    Calibration,
    JobPath,
    JsonPath,
    announce_compilation,
    check_outputs,
    deliver,
    progress_bars,
    quantity_option,
)
from wattree.cli.request import option, request_command
from wattree.errors import InfeasibleError, JobError


class Objective(StrEnum):
    """What the best strategy has least of."""

    TIME = "time"
    ENERGY = "energy"
    COST = "cost"
    CARBON = "carbon"


Least = Annotated[Objective, typer.Option(help="What the best strategy has least of, per step.")]
Pareto = Annotated[
    str | None, option("A,B", "Also show the front of two objectives, such as time,energy.")
]
MaxDevices = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Use no more devices.", show_default=False)
]
PowerCap = Annotated[
    str | None, option("W", "Most power of the whole job, in W or with a unit: '30 kW'.")
]
Deadline = Annotated[
    str | None, option("T", "Longest time for all training.steps, in s or with a unit: '36 h'.")
]
Margin = Annotated[
    str, option("P", "Share of each device's memory to keep free, such as '5 %' or 0.")
]
Top = Annotated[int, typer.Option(metavar="N", min=1, help="Strategies to show.")]
AllowApproximate = Annotated[
    bool,
    typer.Option(
        "--allow-approximate",
        help="Also try phantom layers, which train another function; such strategies are marked.",
    ),
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
    calibration: Calibration = None
    json_path: JsonPath = None


@request_command
def plan(request: PlanRequest) -> None:
    """Rank the strategies that fit, and explain why the best one wins.

    Every legal strategy for the job's cluster is screened, the most promising are simulated;
    the job's own strategy is not read. Exit code 2 if nothing fits (the JSON is still written).

    Example: wattree plan job.yaml --objective energy --top 5 --json plan.json
    """
    import wattree
    from wattree.report import show_plan
    from wattree.search.plan_result import nothing_found

    began = time.perf_counter()
    check_outputs(request.json_path, source=request.job)
    loaded = read_job(request.job)
    asked: dict[str, Any] = {
        "objective": request.objective.value,
        "pareto": _pair(request.pareto),
        "max_devices": request.max_devices,
        "power_cap_w": quantity_option("--power-cap", request.power_cap, "w", may_be_bare=True),
        "deadline_s": quantity_option("--deadline", request.deadline, "s", may_be_bare=True),
        "margin": _share(request.margin),
        "top": request.top,
        "allow_approximate": request.allow_approximate,
        "calibration": request.calibration,
    }
    announce_compilation()
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
    deliver(found.as_json(), request.json_path, lambda console: show_plan(found, console))
    if found.best is None:
        raise typer.Exit(2)


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
