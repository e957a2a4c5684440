"""`wattree plan`: which strategy, and why."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from wattree.cli.output import (
    JobPath,
    JsonPath,
    announce_compilation,
    check_outputs,
    deliver,
    progress_bars,
    quantity_option,
)
from wattree.errors import InfeasibleError, JobError

__all__ = ["plan"]


class Objective(StrEnum):
    """What the best strategy has least of."""

    TIME = "time"
    ENERGY = "energy"
    COST = "cost"
    CARBON = "carbon"


def plan(  # noqa: PLR0917 - typer passes options by name
    job: JobPath,
    objective: Annotated[
        Objective, typer.Option(help="What the best strategy has least of, per step.")
    ] = Objective.TIME,
    pareto: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Also show the front of two objectives, such as time,energy.",
            show_default=False,
        ),
    ] = None,
    max_devices: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Use no more devices.", show_default=False),
    ] = None,
    power_cap: Annotated[
        str | None,
        typer.Option(
            metavar="W",
            help="Most power of the whole job, in W or with a unit: '30 kW'.",
            show_default=False,
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            help="Longest time for all training.steps, in s or with a unit: '36 h'.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Strategies to show.")] = 10,
    allow_approximate: Annotated[
        bool,
        typer.Option(
            "--allow-approximate", help="Also try strategies that change the trained result."
        ),
    ] = False,
    json_path: JsonPath = None,
) -> None:
    """Rank the strategies that fit, and say why the best one wins.

    Every legal strategy for the job's cluster is screened, the most promising are simulated;
    the job's own strategy is not read. Exit code 2 if nothing fits (the JSON is still written).

    Example: wattree plan job.yaml --objective energy --top 5 --json plan.json
    """
    import wattree
    from wattree.report import show_plan

    check_outputs(json_path, source=job)
    loaded = wattree.load_job(job)
    cap_w = quantity_option("--power-cap", power_cap, "w")
    deadline_s = quantity_option("--deadline", deadline, "s")
    announce_compilation()
    try:
        with progress_bars() as progress:
            found = wattree.plan(
                loaded,
                objective=objective.value,
                pareto=_pair(pareto),
                max_devices=max_devices,
                power_cap_w=cap_w,
                deadline_s=deadline_s,
                top=top,
                allow_approximate=allow_approximate,
                progress=progress,
            )
    except InfeasibleError as error:
        deliver(_nothing(objective, error), json_path, lambda _: None)
        raise
    deliver(found.as_json(), json_path, lambda console: show_plan(found, console))
    if found.best is None:
        raise typer.Exit(2)


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


def _nothing(objective: Objective, error: InfeasibleError) -> dict[str, Any]:
    """Return the JSON of a plan that found nothing, with the fields of one that did."""
    return {
        "candidates": sum(error.rejected.values()),
        "simulated": 0,
        "feasible": 0,
        "wall_s": None,
        "objective": objective.value,
        "best": None,
        "ranked": [],
        "explanation": str(error).splitlines(),
        "rejected": error.rejected,
        "pareto": None,
    }
