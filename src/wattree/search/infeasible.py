"""Message when nothing fits: the closest strategy, how much is missing, and remedies."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from wattree.arrays import Flags
from wattree.errors import InfeasibleError, StrategyError
from wattree.job.offers import NOT_TRIED
from wattree.job.optimizers import OPTIMIZER_STATE_BYTES
from wattree.lowering.split_rules import has_split_positions
from wattree.predict import Setting, predicted
from wattree.predict.generation import workload_setting
from wattree.search.device_limits import most_saved
from wattree.search.fixes import on_host
from wattree.search.limits import Limits
from wattree.search.objective import LIMITS, run_objective
from wattree.search.offered import not_offered
from wattree.search.promising import misses
from wattree.search.screen import (
    OUT_OF_MEMORY,
    OVER_POWER,
    Constraints,
    ScreenedSpace,
    screen,
)
from wattree.search.space import enumerate_space
from wattree.search.space_search import SearchedSpace, SpaceSearch, rejections
from wattree.strategy import StrategyOptions, options_in_words
from wattree.trace.bill import LEAST_GOODPUT
from wattree.units import counted, format_bytes, format_time

#: Units of a cap as people give them, largest first. [W]
_CAP_UNITS = (("MW", 1e6), ("kW", 1e3), ("W", 1.0))
#: How far to look for a larger cluster that would do.
_MOST_DOUBLINGS = 6
#: Before any larger cluster: part of this one was left out.
_WIDER = "a larger --max-devices"
#: Limit of the run → what would help to meet it, besides fewer steps.
_HELPS = {
    "time": ("a later --deadline",),
    "cost": ("a larger --budget", "nodes at a lower price (cluster.node)"),
    "energy": ("a higher --energy-limit",),
    "carbon": ("a higher --carbon-limit", "a site with less carbon (cluster.site)"),
}
#: Limit of the run → what has least of it.
_LEAST = {
    "time": "fastest",
    "cost": "cheapest",
    "energy": "least energy",
    "carbon": "least carbon",
}
#: Optimizers with little state that train as AdamW does.
_LEAN = ("adamw8bit", "lion")


def infeasible(
    seek: SpaceSearch,
    sought: Sequence[SearchedSpace],
    limits: Limits,
    *,
    max_devices: int | None = None,
) -> InfeasibleError:
    """Return the error for a search within `limits` that found nothing.

    Args:
        sought: What was found out; of the strategies of the model itself first.
    """
    setting, constraints, rejected = seek.setting, seek.constraints, rejections(sought)
    screened, missed = sought[0].screened, sought[0].found.missed
    reasons = ", ".join(
        f"{reason} ({count:,})" for reason, count in sorted(rejected.items(), key=lambda r: -r[1])
    )
    job = setting.job
    where = f"{setting.model.name} on {job.cluster.label}"
    lines = [
        f"{job.source}: nothing fits: no strategy for {where} meets every constraint",
        *([f"  rejected: {reasons}"] if rejected else []),
    ]
    if lacking := not_offered(setting, limits):
        lines.append(f"  {NOT_TRIED} (--any-software tries it): {'; '.join(lacking)}")
    if not len(screened):
        batch = job.data.global_batch
        lines.append(
            f"  the global batch of {counted(batch, 'sample')} splits over no mesh of these "
            "devices that the model admits; change data.global_batch or the number of nodes"
        )
        return InfeasibleError("\n".join(lines), rejected, warnings=setting.warnings)
    wider = "" if max_devices is None or max_devices >= job.cluster.devices else _WIDER
    lines += _nearest(setting, screened, constraints, missed, wider)
    return InfeasibleError("\n".join(lines), rejected, warnings=setting.warnings)


def _more_nodes(setting: Setting, constraints: Constraints) -> str:
    """Return how many nodes would be enough, found by doubling and then halving the interval.

    Of several pools, all are multiplied by one number.
    """
    cluster = setting.job.cluster
    if cluster.fabric.kind == "none" and any(
        p.node.scale_up.domain_devices <= p.devices for p in cluster.pools
    ):
        return "more nodes, on a cluster.fabric that joins them (such as ethernet-10g)"
    lean = Limits(micro_batches=(1,), recomputations=("full",), schedules=("1f1b",))
    least = 1 if cluster.is_mixed else cluster.nodes

    def fits(count: int) -> bool:
        pools = tuple(replace(p, nodes=p.nodes * count // least) for p in cluster.pools)
        more = replace(cluster, pools=pools, slowdown={}, slow_links={})
        # Graphs of a step after the first are made of the model's own.
        model = setting.model if setting.decode is None else None
        job = replace(setting.job, cluster=more)
        wider = workload_setting(job, setting.calibration, model=model)
        screened = screen(wider, enumerate_space(wider, limits=lean))
        return bool(screened.fits(constraints).any())

    for doublings in range(1, _MOST_DOUBLINGS + 1):
        if fits(least * 2**doublings):
            between = range(least * 2 ** (doublings - 1) + 1, least * 2**doublings)
            count = between.start + bisect_left(between, True, key=fits)
            return f"{cluster.nodes * count // least} nodes (by the closed form)"
    words = f"more than {cluster.nodes * 2**_MOST_DOUBLINGS} nodes"
    # Replicas share samples: no more of them than the batch has can take part.
    few = setting.job.data.global_batch < cluster.devices * 2**_MOST_DOUBLINGS
    return f"{words}, or a larger data.global_batch" if few else words


def _nearest(
    setting: Setting,
    screened: ScreenedSpace,
    constraints: Constraints,
    missed: Mapping[str, int],
    wider: str,
) -> list[str]:
    """Return what the strategy needs that misses the first binding constraint by least."""
    fits = screened.fits(constraints)
    if not fits.any():
        index = int(np.argmin(screened.memory_bytes / screened.capacity_bytes))
        need, capacity = float(screened.memory_bytes[index]), float(screened.capacity_bytes[index])
        options = screened.options(index)
        return [
            f"  nearest: {options_in_words(options)}, which needs "
            f"{format_bytes(need)} on each device of {format_bytes(capacity)}"
            + (f", {constraints.margin:.0%} left free" if constraints.margin else ""),
            f"  what would help: {_offloaded(setting, options, constraints)}"
            f"{wider or _more_nodes(setting, constraints)}, "
            f"{_less_memory(setting)}",
        ]
    power_w = screened.average_power_w
    cap_w = constraints.power_cap_w
    if cap_w is not None and not (fits & (power_w <= cap_w)).any():
        index = int(np.argmin(np.where(fits, power_w, np.inf)))
        unit, scale = next((u for u in _CAP_UNITS if cap_w >= u[1]), _CAP_UNITS[-1])
        pue = setting.job.cluster.site.pue
        return [
            f"  nearest: {options_in_words(screened.options(index))}, which draws "
            f"{power_w[index] / scale:,.5g} {unit} on average, above the cap of "
            f"{cap_w / scale:,.5g} {unit}, both before PUE {pue:.3g} (a cap of "
            f"{cap_w * pue / scale:,.5g} {unit} with it)",
            f"  what would help: a higher --power-cap{_lower_limit(setting)}",
        ]
    within = fits if cap_w is None else fits & (power_w <= cap_w)
    return _beyond(setting, screened, constraints, missed, within=within, wider=wider)


def _lower_limit(setting: Setting) -> str:
    """Return what to say of lower power limits of the devices, which `plan` tries on equal ones."""
    if setting.job.cluster.is_mixed:
        return ", or a power limit on each device (cluster.power_limit)"
    return "; no lower power limit of the devices that was tried is enough"


def _beyond(
    setting: Setting,
    screened: ScreenedSpace,
    constraints: Constraints,
    missed: Mapping[str, int],
    *,
    within: Flags,
    wider: str,
) -> list[str]:
    """Return which limit of the run no strategy meets, or what only simulations found missed."""
    steps = max(setting.job.training.steps, 1)
    fewer = ["fewer training.steps"] * (steps > 1)
    helps = {name: _either([*words, *fewer]) for name, words in _HELPS.items()}
    helps["time"] = _either([*_HELPS["time"], *fewer, wider or "more devices"])
    tried = _lower_limit(setting)
    helps |= {n: helps[n] + tried for n in helps if most_saved(n, setting.job.cluster)}
    for name, most in constraints.most.items():
        over, verb, shown = LIMITS[name]
        run = screened.in_run(setting)
        if (run.step_time_s[within] * LEAST_GOODPUT > screened.step_time_s[within]).all():
            return [
                "  no run ends: failures come before restarts and checkpoints do",
                "  what would help: a shorter training.restart, checkpoints more often, or fewer "
                "devices",
            ]
        values = np.where(within, run.objective(name, setting), np.inf)
        if (least := float(values.min())) > most:
            nearest = options_in_words(screened.options(int(np.argmin(values))))
            return [
                f"  nearest: {nearest}, whose {counted(steps, 'step')} {verb}"
                f"{'s' * (steps == 1)} {shown(least * steps)}, {over} of {shown(most * steps)}",
                f"  what would help: {helps[name]}",
            ]
    closest = _closest(setting, screened, constraints, within)
    if not missed:
        together = "  nearest: each limit of the run can be met, but not all of them at once"
        return [together, *closest]
    index = int(np.argmin(np.where(within, screened.step_time_s, np.inf)))
    step = format_time(float(screened.step_time_s[index]))
    reason = max(missed, key=lambda name: missed[name])
    helps = {LIMITS[name][0]: words for name, words in helps.items()}
    helps[OUT_OF_MEMORY] = f"{wider or 'more devices'}, a smaller --margin, {_less_memory(setting)}"
    helps[OVER_POWER] = "a higher --power-cap"
    return [
        f"  nearest: {options_in_words(screened.options(index))}, of {step} per step by the closed "
        f"form; simulated, the {sum(missed.values())} most promising are {reason}",
        *closest,
        f"  what would help: {helps[reason]}",
    ]


def _closest(
    setting: Setting, screened: ScreenedSpace, constraints: Constraints, within: Flags
) -> list[str]:
    """Return what the run takes with the strategy that needs least of a limit, for each limit.

    Of those that meet the other limits by the closed form; the figures are simulated.
    """
    run, steps = screened.in_run(setting), max(setting.job.training.steps, 1)
    values = {name: run.objective(name, setting) for name in constraints.most}
    met = {name: values[name] <= most for name, most in constraints.most.items()}
    found: dict[str, list[str]] = {}
    for name in met:
        others = [within, *(flags for other, flags in met.items() if other != name)]
        allowed = np.logical_and.reduce(others)
        if not allowed.any():
            continue
        options = screened.options(int(np.argmin(np.where(allowed, values[name], np.inf))))
        try:
            result = predicted(setting, options, detail=False).result
        except StrategyError:
            continue
        spent = [
            f"{LIMITS[each][1]}{'s' * (steps == 1)} {LIMITS[each][2](value * steps)}"
            for each in met
            if (value := run_objective(result, each)) is not None
        ]
        line = f"{options_in_words(options)}, whose {counted(steps, 'step')} {' and '.join(spent)}"
        found.setdefault(line, []).append(_LEAST[name])
    rest = " within the other limits" if len(met) > 1 else ""
    return [f"  {' and '.join(names)}{rest}: {line}" for line, names in found.items()]


def _offloaded(setting: Setting, options: StrategyOptions, constraints: Constraints) -> str:
    """Return that the optimizer's state in host memory is enough, if it is; `plan` does not try."""
    host = on_host(setting, options) if setting.trains else None
    try:
        result = None if host is None else predicted(setting, host).result
    except StrategyError:  # the host has less memory, or the schedule does not admit it
        return ""
    if result is None or misses(result, constraints):
        return ""
    took = format_time(result.step_time_s)
    return f"the same with 'offload: {{optimizer: host}}', which fits with {took} per step; "


def _less_memory(setting: Setting) -> str:
    """Return what makes the need for memory smaller, or meets it."""
    if setting.decode is not None:
        return "devices with more memory, shorter or fewer sequences (data.global_batch)"
    shorter = ["a shorter data.sequence_length"] if has_split_positions(setting.model) else []
    lora = setting.job.model.lora
    if not setting.trains:
        ways = [*shorter, "a smaller data.global_batch"]
    elif lora is not None:
        ways = shorter if lora.base else [*shorter, "a base in 4 bits (model.lora.base: nf4)"]
    else:
        adapters = "adapters in place of all weights (model.lora)"
        ways = shorter + [adapters] * setting.model.own_family
        state = OPTIMIZER_STATE_BYTES
        leaner = [name for name in _LEAN if state[name] < state[setting.job.optimizer]]
        ways += [f"an optimizer with less state ({', '.join(leaner)})"] if leaner else []
    return _either(["devices with more memory", *ways])


def _either(ways: Sequence[str]) -> str:
    """Return the ways in words, of which any helps."""
    *first, last = ways
    return f"{', '.join(first)}{', or ' if first else ''}{last}"
