"""Results of one step → figures of a workload to its target → totals of a point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from wattree.accounts.bill import carbon_gco2e, occupied_nodes, run_intervals, used_nodes
from wattree.accounts.estimated_intervals import estimated_intervals
from wattree.accounts.goodput import run_step
from wattree.design.outcome import WorkloadOutcome
from wattree.design.study import OBJECTIVE_TOTALS, Study, Workload
from wattree.hardware import Cluster
from wattree.predict import Setting
from wattree.search import Estimate
from wattree.search.objective import LIMITS, is_known
from wattree.strategy import Strategy, StrategyOptions, options_in_words
from wattree.strategy.described import describe_options
from wattree.trace import Result, RunStep
from wattree.trace.bill import RUN_FIGURES
from wattree.units import format_quantity


def failed(
    workload: Workload,
    reason: str,
    notes: Sequence[str] = (),
    least: Mapping[str, float] | None = None,
) -> WorkloadOutcome:
    """Return the outcome of a workload that nothing fits.

    Args:
        least: Objective with a limit that is exceeded → least of it to the target.
    """
    figures: dict[str, Any] = {RUN_FIGURES[name]: value for name, value in (least or {}).items()}
    return WorkloadOutcome(
        workload=workload.name, feasible=False, reason=reason, notes=tuple(notes), **figures
    )


def of_result(
    workload: Workload,
    result: Result,
    chosen: StrategyOptions | Strategy,
    steps: float,
    notes: Sequence[str],
) -> WorkloadOutcome:
    """Return the figures of a simulated step, and of as many as the target takes."""
    label, written = _named(chosen, result)
    changed = ("another function is trained",) if result.dense_parameters is not None else ()
    return WorkloadOutcome(
        workload=workload.name,
        feasible=True,
        strategy=label,
        strategy_json=written,
        devices=result.ranks,
        step_time_s=result.step_time_s,
        **_totals(result.in_run, steps),
        average_power_w=result.average_power_w,
        peak_power_w=result.peak_power_w,
        memory_bytes=result.memory.peak_bytes,
        time_parts_s=asdict(result.time_s),
        energy_by_stage_j=dict(result.energy_j.by_stage),
        simulated=True,
        notes=(*notes, *changed),
        traffic_bytes={tier.name: tier.traffic_bytes for tier in result.tiers},
        interval=_intervals(result.interval, result.uninterrupted, result.in_run, steps),
    )


def _named(chosen: StrategyOptions | Strategy, result: Result) -> tuple[str, Mapping[str, Any]]:
    """Return a strategy in one line, and as a job file has it."""
    if isinstance(chosen, StrategyOptions):
        return options_in_words(chosen), describe_options(chosen)
    # No job file has the names of presets.
    tree = {key: value for key, value in result.strategy.items() if key != "preset"}
    return "a tree of the study", tree


def _totals(step: RunStep, steps: float) -> dict[str, Any]:
    """Return the figures of a workload that all steps add up to."""
    return {name: _times(getattr(step, name), steps) for name in RUN_FIGURES.values()}


#: Figures of a workload that are those of its step → quantity of the step.
_OF_STEP = {
    "step_time_s": "step_time_s",
    "average_power_w": "average_power_w",
    "memory_bytes": "memory.peak_bytes",
}


def _intervals(
    of_step: Mapping[str, tuple[float, float]], alone: RunStep, run: RunStep, steps: float
) -> dict[str, tuple[float, float]]:
    """Return the intervals of a workload's figures by those of its step."""
    whole = run_intervals(of_step, alone, run)
    found = {name: of_step[quantity] for name, quantity in _OF_STEP.items() if quantity in of_step}
    return found | {name: (low * steps, high * steps) for name, (low, high) in whole.items()}


def of_estimate(
    workload: Workload, best: Estimate, setting: Setting, steps: float, notes: Sequence[str]
) -> WorkloadOutcome:
    """Return the figures of the closed form, which has no parts of a step."""
    options = best.options
    nodes = occupied_nodes(setting.job, options.ranks)
    alone = RunStep(
        time_s=best.step_time_s,
        energy_j=best.energy_j,
        cost_usd=best.cost_usd if is_known(setting.job.cluster, "cost") else None,
        carbon_gco2e=carbon_gco2e(setting.job, nodes, best.step_time_s, best.energy_j),
        embodied_gco2e=None,
    )
    used = used_nodes(setting.job, options.ranks)
    run = run_step(setting, used, best.step_time_s, best.energy_j) or alone
    return WorkloadOutcome(
        workload=workload.name,
        feasible=True,
        strategy=options_in_words(options),
        strategy_json=describe_options(options),
        devices=options.ranks,
        step_time_s=best.step_time_s,
        **_totals(run, steps),
        average_power_w=best.average_power_w,
        peak_power_w=best.peak_power_w,
        memory_bytes=best.memory_bytes,
        notes=tuple(notes),
        interval=_intervals(
            estimated_intervals(
                setting,
                setting.job.cluster.pools[0].node.device,
                options.ranks,
                {
                    "step_time_s": best.step_time_s,
                    "energy_j": best.energy_j,
                    "memory.peak_bytes": best.memory_bytes,
                    "average_power_w": best.average_power_w,
                },
            ),
            alone,
            run,
            steps,
        ),
    )


def total_of(
    study: Study,
    found: Sequence[WorkloadOutcome],
    cluster: Cluster,
    capital_usd: float | None,
) -> tuple[dict[str, float], str | None]:
    """Return the totals of a point, and why it is infeasible; None if it is feasible.

    Sums of weight × workload; power is the most that the site draws under any of them.
    """
    totals = {} if capital_usd is None else {"capital_usd": capital_usd}
    refused = [entry for entry in found if not entry.feasible]
    if refused:
        many = len(study.workloads) > 1
        reasons = [f"{e.workload}: {e.reason}" if many else str(e.reason) for e in refused]
        return totals | _sums(study, found), "; ".join(reasons)
    totals |= _sums(study, found)
    peaks = [entry.peak_power_w for entry in found if entry.peak_power_w is not None]
    if len(peaks) == len(found):
        totals["power_w"] = max(peaks) * cluster.site.pue
    return totals, _broken(study, totals)


def _sums(study: Study, found: Sequence[WorkloadOutcome]) -> dict[str, float]:
    """Return figures that all workloads have → sum of weight × workload."""
    sums = {}
    for name in ("time_s", "energy_j", "cost_usd", "carbon_gco2e"):
        values = [getattr(entry, name) for entry in found]
        if all(value is not None for value in values):
            pairs = zip(study.workloads, values, strict=True)
            sums[name] = sum(workload.weight * value for workload, value in pairs)
    return sums


#: Kinds of reasons, before a colon: the site, and the price of the cluster, have limits.
OVER_SITE_POWER, OVER_CAPITAL = "over the power of the site", "over the capital"
#: Kind of reason where a cost is asked for, and none can be stated.
NO_PRICE = "no price"

#: Limit → what is said where what it limits is not known.
_UNKNOWN = {
    "cost": f"{NO_PRICE}: the budget cannot be checked; node.price gives one",
    "carbon": "the carbon limit cannot be checked: the site has no carbon intensity (site.carbon)",
}


def _broken(study: Study, totals: dict[str, float]) -> str | None:
    """Return the constraint that the totals break, the first of them; None if they keep all."""
    most = study.constraints
    for name, (reason, verb, shown) in LIMITS.items():
        if (limit := most.most.get(name)) is None:
            continue
        value = totals.get(OBJECTIVE_TOTALS[name])
        if value is None:
            return _UNKNOWN[name]
        if value > limit:
            return f"{reason}: all targets {verb} {shown(value)}, more than {shown(limit)}"
    if most.power_w is not None and totals.get("power_w", 0.0) > most.power_w:
        drawn, cap = (format_quantity(w, "W") for w in (totals["power_w"], most.power_w))
        return f"{OVER_SITE_POWER}: {drawn}, more than {cap}, both with PUE"
    return None


def _times(value: float | None, steps: float) -> float | None:
    return None if value is None else value * steps
