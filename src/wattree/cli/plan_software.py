"""`wattree plan --software`: the best strategy of each of several software families."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattree.cli.job_file import print_warnings
from wattree.cli.output import deliver, progress_bars, tell
from wattree.errors import InfeasibleError, JobError, WattreeError

if TYPE_CHECKING:
    from wattree.job import Job
    from wattree.search import Plan
    from wattree.strategy import StrategyOptions


def families_asked(text: str) -> tuple[str, ...]:
    """Return the software families that `A,B` names, each once.

    Raises:
        UnknownNameError: A name is unknown.
    """
    from wattree.cost.other_software import family_named

    asked: dict[str, list[str]] = {}
    for name in dict.fromkeys(each.strip() for each in text.split(",")):
        asked.setdefault(family_named(name, where="--software"), []).append(name)
    for family, names in asked.items():
        if len(names) > 1:
            tell(f"wattree: --software: {' and '.join(names)} are one family, {family}")
    return tuple(asked)


def refusals(job: Job, options: StrategyOptions) -> tuple[str, ...]:
    """Return why no file that starts the job's software can say its best strategy, if none can.

    Args:
        options: Its best strategy.
    """
    from wattree.job import WorkloadKind
    from wattree.job.offers import offer_of
    from wattree.job.usual import TRAITS

    if offer_of(job.software) is None or job.workload is not WorkloadKind.TRAIN:
        return ()
    if options.ranks != job.cluster.devices:
        return ()
    from wattree.frameworks import FRAMEWORKS
    from wattree.frameworks.concrete import concrete_job
    from wattree.frameworks.export import recipe_files
    from wattree.frameworks.framework import written_frameworks

    frameworks = [
        framework
        for framework in map(FRAMEWORKS.__getitem__, written_frameworks())
        if job.software in framework.software
    ]
    # A strategy that was found leaves the traits of its software open, as that of a file does.
    left = tuple(key for key in job.left_open if key == TRAITS)
    best = replace(job, strategy=options, left_open=left)
    found = []
    for framework in frameworks:
        try:
            recipe_files(framework, concrete_job(best))
        except WattreeError as error:
            problems = error.problems if isinstance(error, JobError) else [str(error)]
            found += [f"no export to {framework.name}: {why}" for why in problems]
        else:
            return ()
    return tuple(found)


def compare_families(
    job: Job, names: Sequence[str], asked: Mapping[str, Any], json_path: Path | None
) -> dict[str, Plan]:
    """Show the best strategy of each software family, and return the plans, the best first.

    Args:
        job: What to train; its own software is not read.
        asked: Arguments of `plan`.
        json_path: Where JSON goes.
    """
    import wattree
    from wattree.job import AUTO
    from wattree.job.offers import foreign_device
    from wattree.job.usual import left_open
    from wattree.report import show_software
    from wattree.search.objective import objective_of

    plans: dict[str, Plan] = {}
    reasons: dict[str, str] = {}
    for name in names:
        named = replace(job, software=name, strategy=AUTO, left_open=left_open(AUTO, name))
        if foreign := foreign_device(name, job.cluster):
            reasons[name] = foreign
            continue
        try:
            with progress_bars() as progress:
                plans[name] = wattree.plan(named, **asked, progress=progress)
            warnings = plans[name].warnings
        except InfeasibleError as error:
            reasons[name] = str(error).removeprefix(f"{job.source}: ")
            warnings = tuple(error.warnings)
        print_warnings(Path(job.source), (f"{name}: {warning}" for warning in warnings))

    def value(name: str) -> float:
        best = plans[name].best
        return math.inf if best is None else objective_of(best.result, str(asked["objective"]))

    ranked = {name: plans[name] for name in sorted(plans, key=value)}
    found = {name: plan.as_json() for name, plan in ranked.items()} | dict.fromkeys(reasons)
    deliver(
        lambda: {"software": found},
        json_path,
        lambda console: show_software(ranked, reasons, console, differences=differences(ranked)),
    )
    return ranked


def differences(ranked: Mapping[str, Plan]) -> tuple[str, ...]:
    """Return why the best strategies of other families take longer or less than the first's."""
    from wattree.search.compared import ComparedRun, compared

    runs = [
        ComparedRun(name=name, source=name, facts={}, figures=plan.best.result.as_json())
        for name, plan in ranked.items()
        if plan.best is not None
    ]
    return compared(runs).reasons if runs else ()
