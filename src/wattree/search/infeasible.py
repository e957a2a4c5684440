"""Message when nothing fits: the closest strategy, how much is missing, and remedies."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattree.arrays import Flags
from wattree.errors import InfeasibleError, StrategyError, WattreeError
from wattree.job import Job
from wattree.job.job import Data, Lora
from wattree.job.offers import NOT_TRIED, Offer
from wattree.job.optimizers import OPTIMIZER_STATE_BYTES
from wattree.lowering.split_rules import has_split_positions
from wattree.predict import Setting, predicted
from wattree.predict.generation import workload_setting
from wattree.search.device_limits import most_saved
from wattree.search.fixes import host_state, on_host
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
from wattree.strategy import options_in_words
from wattree.trace.bill import LEAST_GOODPUT
from wattree.units import counted, format_bytes, format_time

#: Units of a cap as people give them, largest first. [W]
_CAP_UNITS = (("MW", 1e6), ("kW", 1e3), ("W", 1.0))
#: How far to look for a larger cluster, or a smaller step, that would do.
_MOST_DOUBLINGS = 6
#: Rank of adapters that are tried; their size hardly matters next to the frozen weights.
_RANK = 16
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
    lines += _nearest(_Remedies(setting, screened, constraints, limits.offer, wider), missed)
    return InfeasibleError("\n".join(lines), rejected, warnings=setting.warnings)


@dataclass(frozen=True, slots=True)
class _Remedies:
    """What would help a search that found nothing.

    Attributes:
        offer: What the software can run; None for all.
        wider: Words, where part of the cluster was left out.
    """

    setting: Setting
    screened: ScreenedSpace
    constraints: Constraints
    offer: Offer | None
    wider: str

    def fits(self, job: Job) -> bool:
        """Return whether the leanest strategies fit a changed job, by the closed form."""
        setting = self.setting
        had = setting.job
        # Graphs of a step after the first are made of the model's own.
        same = setting.decode is None and (job.model, job.data) == (had.model, had.data)
        offer = self.offer
        plain = "1f1b" if offer is None or offer.has("schedule", "1f1b") else "gpipe"
        lean = Limits(micro_batches=(1,), recomputations=("full",), schedules=(plain,), offer=offer)
        try:
            changed = workload_setting(
                job, setting.calibration, model=setting.model if same else None
            )
            screened = screen(changed, enumerate_space(changed, limits=lean))
        except WattreeError:  # the model or its data cannot be so
            return False
        return bool(screened.fits(self.constraints).any())

    def more_nodes(self) -> str:
        """Return how many nodes would be enough, found by doubling, then halving the interval.

        Of several pools, all are multiplied by one number.
        """
        setting, cluster = self.setting, self.setting.job.cluster
        if cluster.fabric.kind == "none" and any(
            p.node.scale_up.domain_devices <= p.devices for p in cluster.pools
        ):
            return "more nodes, on a cluster.fabric that joins them (such as ethernet-10g)"
        least = 1 if cluster.is_mixed else cluster.nodes

        def fits(count: int) -> bool:
            pools = tuple(replace(p, nodes=p.nodes * count // least) for p in cluster.pools)
            more = replace(cluster, pools=pools, slowdown={}, slow_links={})
            return self.fits(replace(setting.job, cluster=more))

        for doublings in range(1, _MOST_DOUBLINGS + 1):
            if fits(least * 2**doublings):
                between = range(least * 2 ** (doublings - 1) + 1, least * 2**doublings)
                count = between.start + bisect_left(between, True, key=fits)
                return f"{cluster.nodes * count // least} nodes (by the closed form)"
        words = f"more than {cluster.nodes * 2**_MOST_DOUBLINGS} nodes"
        # Replicas share samples: no more of them than the batch has can take part.
        few = setting.job.data.global_batch < cluster.devices * 2**_MOST_DOUBLINGS
        return f"{words}, or a larger data.global_batch" if few else words

    def offloaded(self) -> str:
        """Return that state in host memory is enough, if it is; `plan` does not try that."""
        setting, screened = self.setting, self.screened
        if not setting.trains:
            return ""
        order = np.argsort(screened.memory_bytes / screened.capacity_bytes, kind="stable")
        tiers = host_state(setting)
        # Parameters move only where they are sharded, which the leanest need not be.
        for index in order if "parameters" in tiers else order[:1]:
            options = screened.options(int(index))
            if (host := on_host(setting, options)) is not None:
                break
        else:
            return ""
        try:
            result = predicted(setting, host).result
        except StrategyError:  # the host has less memory, or the schedule does not admit it
            return ""
        if misses(result, self.constraints):
            return ""
        who = "the same" if index == self.leanest else options_in_words(options)
        moved = ", ".join(f"{name}: host" for name in tiers)
        took = format_time(result.step_time_s)
        return f"{who} with 'offload: {{{moved}}}', which fits with {took} per step; "

    @property
    def leanest(self) -> int:
        """The strategy that misses the memory of its devices by least."""
        return int(np.argmin(self.screened.memory_bytes / self.screened.capacity_bytes))

    def less_memory(self) -> str:
        """Return what makes the need for memory small enough, or meets it."""
        setting, job = self.setting, self.setting.job
        ways = ["devices with more memory"]
        if setting.decode is not None:
            if self._largest(lambda n: replace(job.data, global_batch=n), job.data.global_batch):
                ways.append("shorter or fewer sequences (data.global_batch)")
            return ", ".join(ways)
        length, lora = job.data.sequence_length, job.model.lora
        if length is not None and has_split_positions(setting.model):
            few = self._largest(lambda n: replace(job.data, sequence_length=n), length)
            ways += [f"a data.sequence_length of {few:,}"] if few else []
        if not setting.trains:
            batch = job.data.global_batch
            few = self._largest(lambda n: replace(job.data, global_batch=n), batch)
            ways += [f"a data.global_batch of {few:,}"] if few else []
        elif lora is None:
            if setting.model.own_family and self._adapted(Lora(rank=_RANK)):
                ways.append("adapters in place of all weights (model.lora)")
            if leaner := [name for name in _LEAN if self._leaner(name)]:
                ways.append(f"an optimizer with less state ({', '.join(leaner)})")
        elif not lora.base and self._adapted(replace(lora, base="nf4")):
            ways.append("a base in 4 bits (model.lora.base: nf4)")
        return _either(ways)

    def _largest(self, data: Callable[[int], Data], most: int) -> int:
        """Return the largest half, quarter, ... of a number with which the job fits; 0 if none."""
        job = self.setting.job

        def fits(halvings: int) -> bool:
            return self.fits(replace(job, data=data(most >> halvings)))

        last = min(_MOST_DOUBLINGS, most.bit_length() - 1)
        if not last or not fits(last):
            return 0
        return most >> (1 + bisect_left(range(1, last), True, key=fits))

    def _adapted(self, lora: Lora) -> bool:
        job = self.setting.job
        return self.fits(replace(job, model=replace(job.model, lora=lora)))

    def _leaner(self, name: str) -> bool:
        job, state = self.setting.job, OPTIMIZER_STATE_BYTES
        known = () if self.offer is None else self.offer.optimizers
        return (
            state[name] < state[job.optimizer]
            and (not known or name in known)
            and self.fits(replace(job, optimizer=name))
        )


def _nearest(helps: _Remedies, missed: Mapping[str, int]) -> list[str]:
    """Return what the strategy needs that misses the first binding constraint by least."""
    setting, screened, constraints = helps.setting, helps.screened, helps.constraints
    fits = screened.fits(constraints)
    if not fits.any():
        index = helps.leanest
        need, capacity = float(screened.memory_bytes[index]), float(screened.capacity_bytes[index])
        options = screened.options(index)
        return [
            f"  nearest: {options_in_words(options)}, which needs "
            f"{format_bytes(need)} on each device of {format_bytes(capacity)}"
            + (f", {constraints.margin:.0%} left free" if constraints.margin else ""),
            f"  what would help: {helps.offloaded()}"
            f"{helps.wider or helps.more_nodes()}, {helps.less_memory()}",
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
    return _beyond(helps, missed, within=within)


def _lower_limit(setting: Setting) -> str:
    """Return what to say of lower power limits of the devices, which `plan` tries on equal ones."""
    if setting.job.cluster.is_mixed:
        return ", or a power limit on each device (cluster.power_limit)"
    return "; no lower power limit of the devices that was tried is enough"


def _beyond(remedies: _Remedies, missed: Mapping[str, int], *, within: Flags) -> list[str]:
    """Return which limit of the run no strategy meets, or what only simulations found missed."""
    setting, screened, constraints = remedies.setting, remedies.screened, remedies.constraints
    wider, steps = remedies.wider, max(setting.job.training.steps, 1)
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
    if reason == OUT_OF_MEMORY:
        more = wider or "more devices"
        helps[reason] = f"{more}, a smaller --margin, {remedies.less_memory()}"
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


def _either(ways: Sequence[str]) -> str:
    """Return the ways in words, of which any helps."""
    *first, last = ways
    return f"{', '.join(first)}{', or ' if first else ''}{last}"
