"""`plan`: screen every strategy in closed form, simulate the best, rank, explain."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from wattree.cost import load_calibration
from wattree.errors import JobError, StrategyError
from wattree.job import AUTO, Job, WorkloadKind, naming
from wattree.job.entered import checked_job, entering, watts
from wattree.job.usual import TRAITS
from wattree.job.values import number, whole
from wattree.predict import Setting, predicted
from wattree.predict.generation import workload_setting
from wattree.predict.left_open import DEFAULT_MARGIN
from wattree.search.best import Known, best_strategy
from wattree.search.colocation import sharing_limits
from wattree.search.device_limits import most_saved, under_device_limits
from wattree.search.explain import explanation
from wattree.search.hand import hand_choices
from wattree.search.ideas import front, of_best_ideas
from wattree.search.infeasible import infeasible
from wattree.search.limits import Limits, cluster_counts, cluster_counts_below
from wattree.search.mixed import mixed_near
from wattree.search.objective import (
    check_limits,
    check_objectives,
    pair,
    run_limits,
)
from wattree.search.offered import not_offered, of_other_software, within_offer
from wattree.search.plan_result import Plan, RankedStrategy
from wattree.search.promising import (
    FEWEST,
    in_order,
    ranked_strategy,
    with_rivals,
    without_idle_recomputation,
)
from wattree.search.rank_counts import rank_counts, ranks_below, ranks_near
from wattree.search.refine import searched_near
from wattree.search.screen import LIMIT_ALLOWANCE, Constraints
from wattree.search.space import enumerate_space
from wattree.search.space_search import (
    Progress,
    SearchedSpace,
    SpaceSearch,
    in_parts,
    rejections,
)
from wattree.search.spread_tables import NOT_SPREAD, with_spread_tables
from wattree.strategy import StrategyOptions
from wattree.units import counted

#: Estimates of what is simulated next may be wrong.
_ROOM = Constraints(allowance=LIMIT_ALLOWANCE)


@entering(
    job=partial(checked_job, runs_strategy=False),
    pareto=pair,
    max_devices=whole(1),
    power_cap_w=watts,
    deadline_s=number("a number of seconds above 0"),
    budget_usd=number("a number of USD above 0"),
    energy_limit_j=number("a number of joules above 0"),
    carbon_limit_gco2e=number("a number of gCO2e above 0"),
    margin=number("a share from 0 to below 1", math.nextafter(1.0, 0.0), from_zero=True),
    top=whole(1),
)
def plan(
    job: Job,
    *,
    objective: str = "time",
    pareto: tuple[str, str] | None = None,
    max_devices: int | None = None,
    power_cap_w: float | None = None,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    energy_limit_j: float | None = None,
    carbon_limit_gco2e: float | None = None,
    margin: float = DEFAULT_MARGIN,
    top: int = 10,
    allow_approximate: bool = False,
    any_software: bool = False,
    calibration: str | Path | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Return the strategies that fit a job, best first, and why the first one wins.

    Args:
        job: Model and cluster; its own strategy is not read.
        objective: The quantity to minimize per step: `time`, `energy`, `cost` or `carbon`.
        pareto: Two objectives whose Pareto front is returned too.
        max_devices: Use no more devices.
        power_cap_w: Highest power of the job's nodes at any moment, before PUE. [W]
        deadline_s, budget_usd, energy_limit_j, carbon_limit_gco2e: The most that all of
            `training.steps` may take; energy is with PUE. [s, USD, J, gCO2e]
        margin: Share of each device's memory to leave free, for errors of predicted memory.
        top: Ideas to return, each with its variants: strategies that differ only in details.
        allow_approximate: Also try phantom layers, which train another function than the model's.
        any_software: Also try strategies that the job's software cannot run.
        calibration: File of constants; the shipped one if None.
        limits: Part of the space to search; all of it if None.
        progress: Called with (stage, done, total), where later parts of the space add to both.

    Raises:
        InfeasibleError: No strategy meets the constraints; it names the nearest.
        JobError: It lacks a price or carbon intensity that is needed, or has part of its cluster.
    """
    began, wanted = time.perf_counter(), (objective, *(pareto or ()))
    most = run_limits(
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        energy_limit_j=energy_limit_j,
        carbon_limit_gco2e=carbon_limit_gco2e,
    )
    constraints = replace(_ROOM, power_cap_w=power_cap_w, most=_of_step(most, job), margin=margin)
    seek = _space_search(job, wanted, constraints, calibration, fewest=top, report=progress)
    limits = within_offer(limits or Limits(), seek.setting, any_software=any_software)
    ranks = rank_counts(job.cluster, constraints, wanted, max_devices, limits)
    with naming(job):
        sought, found = _searched(seek, ranks, limits, pareto, approximate=allow_approximate)
    if not found:
        raise infeasible(seek, sought, limits, max_devices=max_devices)
    answer = _answer(seek, limits, sought, found, top=top, pareto=pareto)
    answer = _with_mixes(answer, seek, sought[0], limits, any_software=any_software)
    said = _said(seek.setting, ranks, sought, approximate=allow_approximate)
    return replace(answer, warnings=(*answer.warnings, *said), wall_s=time.perf_counter() - began)


def meets_by_estimate(
    job: Job,
    *,
    most: Mapping[str, float],
    objective: str = "time",
    max_devices: int | None = None,
    margin: float = DEFAULT_MARGIN,
    allow_approximate: bool = False,
    any_software: bool = False,
    calibration: str | Path | None = None,
    limits: Limits | None = None,
    **_: object,
) -> bool:
    """Return whether a strategy may meet the limits of the run, by its estimate.

    Only spread tables are simulated. Arguments are those of `plan`, where others have no effect: a
    power cap neither, which a lower power limit of the devices may keep. It may save energy too.

    Args:
        most: Objective → the most of it that all of `training.steps` may have.
    """
    allowance = LIMIT_ALLOWANCE  # of those that may meet them, the caller simulates some
    saved = {name: 1.0 - most_saved(name, job.cluster) for name in most}
    loose = {name: limit / saved[name] for name, limit in _of_step(most, job).items()}
    constraints = Constraints(most=loose, allowance=allowance, margin=margin)
    seek = _space_search(job, (objective,), constraints, calibration, fewest=1, report=None)
    limits = within_offer(limits or Limits(), seek.setting, any_software=any_software)
    ranks = rank_counts(job.cluster, constraints, (objective,), max_devices, limits)
    known = Known(shared=seek.shared)
    found = (
        best_strategy(
            seek.setting,
            objective=objective,
            constraints=constraints,
            ranks=ranks,
            limits=replace(limits, phantom=phantom),
            simulate=0,
            known=known,
        )
        for phantom in {False, allow_approximate}
    )
    return any(each.reason is None for each in found)


def _of_step(most: Mapping[str, float], job: Job) -> dict[str, float]:
    """Return the most that a step may have, so that the run keeps within its limits."""
    return {name: limit / max(job.training.steps, 1) for name, limit in most.items()}


def _with_mixes(
    answer: Plan, seek: SpaceSearch, sought: SearchedSpace, limits: Limits, *, any_software: bool
) -> Plan:
    """Return a plan with the best mix near its first strategy, if one is surely better.

    Software that is known can run none; what that assumed for constants lacks is a warning.
    """
    if answer.best is not None and not any_software:
        lacks = of_other_software(seek.setting, answer.best.options)
        answer = replace(answer, warnings=(*answer.warnings, *lacks))
    if not limits.refined or limits.offer is not None:
        return answer
    if answer.best is None or answer.best.power_limit_w is not None:
        return answer
    if seek.setting.job.workload is not WorkloadKind.TRAIN:
        return answer
    near = mixed_near(
        seek.setting, answer.best, sought.screened, seek.constraints, seek.objectives[0]
    )
    return replace(answer, mixed=near.best, mixes=near.simulated)


def _space_search(
    job: Job,
    wanted: Sequence[str],
    constraints: Constraints,
    calibration: str | Path | None,
    *,
    fewest: int,
    report: Progress | None,
) -> SpaceSearch:
    """Return how to search for strategies of a job, if it can be planned."""
    _check_whole(job)
    own = tuple(key for key in job.left_open if key == TRAITS)  # of the software, not the strategy
    job = replace(job, strategy=AUTO, left_open=own)
    setting = workload_setting(job, load_calibration(calibration))
    check_objectives(setting, wanted)
    check_limits(setting.job, constraints.most)
    return SpaceSearch(
        setting=setting,
        constraints=constraints,
        # Where something is limited, what has least of it may be all that is left. The fastest save
        # energy at rest, so they are always worth a look.
        objectives=tuple(dict.fromkeys((*wanted, *constraints.most, "time"))),
        fewest=max(FEWEST, fewest),
        report=in_parts(report or (lambda *_: None)),
    )


def _answer(
    seek: SpaceSearch,
    limits: Limits,
    sought: Sequence[SearchedSpace],
    found: tuple[RankedStrategy, ...],
    *,
    top: int,
    pareto: tuple[str, str] | None,
) -> Plan:
    """Return the plan, but for its time.

    Args:
        sought: What was found in each space.
        found: All strategies that meet the constraints, best first.
        pareto: Two objectives whose front is wanted too.
    """
    setting, objective = seek.setting, seek.objectives[0]
    hands = hand_choices(
        setting,
        found[0].options.ranks,
        offer=limits.offer,
        shared=seek.shared,
        like=sought[0].screened.space,
    )
    known = {entry.options: entry for entry in found if entry.power_limit_w is None}
    rivals = {
        name: known.get(options) or _simulated(setting, options) for name, options in hands.items()
    }
    entries = with_rivals(found, list(rivals.values()), seek.constraints, objective)
    ranked = without_idle_recomputation(entries)
    spread = sum(entry.options.parallelism.tables != NOT_SPREAD for entry in found)
    simulated = sum(part.found.simulated for part in sought) + spread
    exact = next((entry for entry in ranked if entry.result.dense_parameters is None), None)
    return Plan(
        candidates=sum(part.candidates for part in sought) + spread,
        simulated=simulated + sum(rival is not None for rival in rivals.values()),
        feasible=sum(part.feasible for part in sought) + spread,
        wall_s=0.0,
        objective=objective,
        best=ranked[0],
        ranked=of_best_ideas(ranked, objective, top),
        explanation=explanation(setting, objective, ranked, rivals, constraints=seek.constraints),
        rejected=rejections(sought),
        warnings=setting.warnings,
        not_offered=not_offered(setting, limits),
        pareto=None if pareto is None else front(ranked, pareto),
        exact=None if exact is ranked[0] else exact,
    )


def _searched(
    seek: SpaceSearch,
    ranks: Sequence[int],
    limits: Limits,
    pareto: tuple[str, str] | None,
    *,
    approximate: bool,
) -> tuple[list[SearchedSpace], tuple[RankedStrategy, ...]]:
    """Return what was found in each space, and all of it in order.

    Args:
        ranks: Numbers of ranks to try.
        pareto: Two objectives whose front is wanted; then all count, not just the first.
        approximate: Also strategies that train another function.
    """
    front = pareto is not None
    setting, objective = seek.setting, seek.objectives[0]
    sought = [seek.within(enumerate_space(setting, ranks=ranks, limits=limits))]
    if approximate:
        # Apart, so that strategies of the model itself are simulated however far behind they are.
        changed = enumerate_space(setting, ranks=ranks, limits=replace(limits, phantom=True))
        sought.append(seek.within(changed))
    if not any(len(part.screened) for part in sought) and (fewer := _fewer(seek, ranks, limits)):
        return _searched(seek, fewer, limits, pareto, approximate=approximate)
    found = in_order((entry for part in sought for entry in part.found.found), objective)
    several = len(ranks) > 1
    more = (
        ranks_near(seek, ranks, found, front=front)
        if several
        else ranks_below(seek, ranks, found, limits)
    )
    while more:
        space = enumerate_space(setting, ranks=more, limits=limits)
        sought.append(seek.within(space, than=() if front else found))
        added = {id(entry) for entry in sought[-1].found.found}
        found = in_order((*found, *sought[-1].found.found), objective)
        improved = bool(found) and id(found[0]) in added
        if improved:  # what follows looks around the best
            sought[0], sought[-1] = sought[-1], sought[0]
            ranks = (*ranks, found[0].options.ranks)
        more = ranks_below(seek, more, found, limits) if improved and not several else ()
    if found and limits.refined:
        near, better = searched_near(seek, sought[0], found, limits)
        sought.append(near)
        found = in_order((*found, *better), objective)
    shared = found and sharing_limits(
        setting, found[0].options, limits, simulated_s=found[0].result.step_time_s
    )
    if shared:
        space = enumerate_space(setting, ranks=ranks, limits=shared)
        sought.append(seek.within(space, than=found))
        found = in_order((*found, *sought[-1].found.found), objective)
    spread = with_spread_tables(setting, ranks, seek.constraints, limits)
    limited = under_device_limits(seek, (objective, *(pareto or ())), sought, found)
    return [*sought, limited], in_order((*found, *spread, *limited.found.found), objective)


def _fewer(seek: SpaceSearch, ranks: Sequence[int], limits: Limits) -> tuple[int, ...]:
    """Return the largest number of ranks below those tried that the job splits over, if any."""
    job = seek.setting.job
    counts = [*cluster_counts_below(min(ranks), job, least=0), *cluster_counts(job.cluster)]
    for count in sorted({n for n in counts if n < min(ranks) and limits.idle_nodes}, reverse=True):
        if len(enumerate_space(seek.setting, ranks=(count,), limits=limits)):
            return (count,)
    return ()


def _said(
    setting: Setting, ranks: Sequence[int], sought: Sequence[SearchedSpace], *, approximate: bool
) -> Iterator[str]:
    """Yield warnings of what was asked for and has no effect, and of devices that stay idle."""
    if approximate and not sought[1].candidates:
        yield (
            f"allow_approximate: has no effect: no layers of {setting.model.name} can be phantom "
            "layers on these devices"
        )
    used = max(part.screened.options(0).ranks for part in sought if len(part.screened))
    if used < min(ranks):
        samples = counted(setting.job.data.global_batch, "sample")
        yield (
            f"data.global_batch: {samples} split over no mesh of {min(ranks)} devices that model "
            f"and software admit: {used} are used"
        )


def _check_whole(job: Job) -> None:
    """Refuse a job that shares its cluster: closed forms know neither places nor neighbours."""
    if job.devices is None and not job.neighbours:
        return
    given = "neighbours" if job.neighbours else "place"
    raise JobError(
        job.source,
        [
            f"{given}: found, expected none to plan: strategies are ranked for a job alone on a "
            "whole cluster; leave it out and give cluster the nodes that the job has, fewer "
            "devices of them by --max-devices, then simulate what is found in its place"
        ],
    )


def _simulated(setting: Setting, options: StrategyOptions) -> RankedStrategy | None:
    """Return a hand choice and what it would do; None if it cannot be compiled."""
    try:
        return ranked_strategy(options, predicted(setting, options).result)
    except StrategyError:
        return None
