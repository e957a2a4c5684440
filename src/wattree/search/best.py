"""Search for the best strategy alone, for many jobs: one space, many clusters.

What is listed and compiled for one cluster is kept for others of as many devices, so that a study
of clusters pays for a space once. `plan` is for people, who also want to know why.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from wattree.job import AUTO, Job, TrainingOptions
from wattree.job.energy import EnergyTerms
from wattree.job.offers import NOT_TRIED
from wattree.predict import Setting, Shared
from wattree.search.limits import Limits, cluster_counts_near
from wattree.search.objective import LIMITS, is_known, known_objective
from wattree.search.offered import not_offered
from wattree.search.placements import accesses_expanded_memory
from wattree.search.plan_result import RankedStrategy
from wattree.search.promising import in_order, search
from wattree.search.screen import LIMIT_ALLOWANCE, Constraints, ScreenedSpace, screen
from wattree.search.space import Space, enumerate_space
from wattree.search.spread_tables import with_spread_tables
from wattree.strategy import StrategyOptions, options_in_words
from wattree.units import format_bytes, format_quantity

#: Spaces, and estimates of spaces, that are kept; a million strategies take some 100 MB.
_MOST_SPACES = 8
#: Simulated however far the second is behind: two estimates are rarely wrong in one way.
_FEWEST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A strategy with its estimate in closed form.

    Attributes:
        step_time_s, energy_j, memory_bytes: Of a step; of the fullest device. [s, J, B]
        average_power_w, peak_power_w: Of the nodes, before PUE. [W]
        cost_usd, carbon_gco2e: Of a step; infinite where no price or intensity is known.
    """

    options: StrategyOptions
    step_time_s: float
    energy_j: float
    memory_bytes: float
    average_power_w: float
    peak_power_w: float
    cost_usd: float
    carbon_gco2e: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The result of a search.

    Attributes:
        ranked: The best that was simulated; None where nothing was.
        estimate: The best by the closed form; None where nothing fits.
        feasible: Of the candidates, those that meet every constraint by the closed form.
        simulated: How many were simulated.
        reason: Why there is none, in one line; None where there is one.
        least: Objective → least of it that a step has, where all exceed its limit. [s, J, USD, g]
    """

    ranked: RankedStrategy | None
    estimate: Estimate | None
    candidates: int
    feasible: int
    simulated: int
    reason: str | None
    least: Mapping[str, float] = field(default_factory=dict)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The number of ranks that it uses; empty where there is none."""
        chosen = self.ranked or self.estimate
        return () if self.reason is not None or chosen is None else (chosen.options.ranks,)

    def value(self, objective: str) -> float:
        """Return the value of an objective; infinite if it is unknown."""
        if self.reason is not None:
            return math.inf
        if self.ranked is not None:
            found = known_objective(self.ranked.result, objective)
            return math.inf if found is None else found
        assert self.estimate is not None
        values = {
            "time": self.estimate.step_time_s,
            "energy": self.estimate.energy_j,
            "cost": self.estimate.cost_usd,
            "carbon": self.estimate.carbon_gco2e,
        }
        return values[objective]


@dataclass(slots=True)
class Known:
    """Results shared by searches for one model, filled on demand.

    Attributes:
        spaces: Listed strategies, those used last at the end.
        screened: Jobs without what estimates do not depend on, and estimates of their strategies.
    """

    shared: Shared = field(default_factory=Shared)
    spaces: OrderedDict[Hashable, Space] = field(default_factory=OrderedDict)
    screened: list[tuple[Job, ScreenedSpace]] = field(default_factory=list)

    def estimates(self, setting: Setting, ranks: tuple[int, ...], limits: Limits) -> ScreenedSpace:
        """Return estimates of the strategies of a job.

        Prices, and memory where nothing overflows from it, change no estimate, so that clusters
        which differ in these alone are screened once.
        """
        space, cluster = self.space(setting, ranks, limits), setting.job.cluster
        if cluster.is_mixed:
            return screen(setting, space, shared=self.shared)
        job = _bare(setting.job)
        for index, (of, found) in enumerate(self.screened):
            if found.space is space and of == job:
                self.screened.append(self.screened.pop(index))
                return found.on(cluster)
        found = screen(setting, space, shared=self.shared)
        self.screened = [*self.screened[1 - _MOST_SPACES :], (job, found)]
        return found

    def space(self, setting: Setting, ranks: tuple[int, ...], limits: Limits) -> Space:
        """Return the strategies of a job that uses one of these numbers of ranks."""
        job = setting.job
        shape = (job.data.global_batch, job.data.sequence_length, setting.software)
        # A space depends on the cluster only through its number of devices, and whether these
        # reach expanded memory, unless pools differ.
        reaches = accesses_expanded_memory(job.cluster)
        key = (ranks, shape, reaches, json.dumps(asdict(limits), sort_keys=True))
        if job.cluster.is_mixed:
            return enumerate_space(setting, ranks=ranks, limits=limits)
        if key not in self.spaces:
            self.spaces[key] = enumerate_space(setting, ranks=ranks, limits=limits)
            while len(self.spaces) > _MOST_SPACES:
                self.spaces.popitem(last=False)
        self.spaces.move_to_end(key)
        return self.spaces[key]


def best_strategy(
    setting: Setting,
    *,
    objective: str,
    constraints: Constraints,
    ranks: tuple[int, ...],
    limits: Limits,
    simulate: int,
    known: Known | None = None,
) -> Best:
    """Return the strategy with the lowest value of an objective.

    Of several numbers of ranks, others near the best are tried as well, as `plan` does. Strategies
    that spread tables over devices are simulated in any case: there is no closed form.

    Args:
        objective: `time`, `energy`, `cost` or `carbon`, per step.
        ranks: Numbers of ranks to try.
        simulate: How many strategies that fit are simulated at most, as long as the closed form's
            error leaves any that may be better; with 0 the closed form decides.
        known: Cache between calls for the same model, software and batch.
    """
    known = known or Known()

    def on(counts: tuple[int, ...]) -> Best:
        return _best_on(
            counts,
            setting,
            objective=objective,
            constraints=constraints,
            limits=limits,
            simulate=simulate,
            known=known,
        )

    found = on(ranks)
    if more := cluster_counts_near(found.ranks, ranks, setting.job):
        near = on(more)
        return replace(
            min(found, near, key=lambda each: each.value(objective)),
            candidates=found.candidates + near.candidates,
            feasible=found.feasible + near.feasible,
            simulated=found.simulated + near.simulated,
        )
    return found


def _best_on(
    ranks: tuple[int, ...],
    setting: Setting,
    *,
    objective: str,
    constraints: Constraints,
    limits: Limits,
    simulate: int,
    known: Known,
) -> Best:
    """Return the best strategy on some numbers of ranks; arguments are those of `best_strategy`."""
    screened = known.estimates(setting, ranks, limits)
    if simulate:
        constraints = replace(constraints, allowance=LIMIT_ALLOWANCE)
    turned_away = screened.rejections(constraints, setting)
    feasible = ~np.logical_or.reduce(list(turned_away.values()))
    counts = {reason: int(mask.sum()) for reason, mask in turned_away.items()}
    best, found = None, None
    if feasible.any():
        values = np.where(feasible, screened.objective(objective, setting), np.inf)
        best = _estimate(screened, int(np.argmin(values)), setting)
    if best is not None and simulate:
        found = search(
            setting,
            screened,
            feasible,
            constraints,
            objectives=(objective,),
            fewest=min(_FEWEST, simulate),
            enough=simulate,
        )
        counts |= {why: counts.get(why, 0) + count for why, count in found.missed.items()}
    spread = tuple(with_spread_tables(setting, ranks, constraints, limits))
    simulated = in_order((*(found.found if found else ()), *spread), objective)
    counted = Best(
        ranked=simulated[0] if simulated else None,
        estimate=best,
        candidates=len(screened) + len(spread),
        feasible=int(feasible.sum()) + len(spread),
        simulated=(found.simulated if found else 0) + len(spread),
        reason=None,
    )
    if best is not None and not simulate:
        estimated = replace(counted, ranked=None)
        return min(estimated, counted, key=lambda each: each.value(objective))
    if simulated:
        return counted
    missed = found.missed if found else {}
    least = _least(setting, screened, constraints)
    nearest = _nearest(setting, screened, constraints, least)
    why = _reason(setting, screened, counts, missed, nearest, limits=limits)
    return replace(counted, reason=why, least=least)


def _bare(job: Job) -> Job:
    """Return a job with what estimates depend on alone."""
    cluster = job.cluster
    node, site = cluster.node, cluster.site
    device = replace(node.device, sources={})
    if node.cxl is None:  # what does not fit is nowhere, whatever the memory
        device = replace(device, memory_bytes=1.0)
    node = replace(node, device=device, price_usd_per_s=None, sources={})
    site = replace(
        site,
        carbon_gco2e_per_j=None,
        energy_price_usd_per_j=None,
        bills_energy=False,
        name="",
        sources={},
    )
    pool = replace(cluster.pool, node=node)
    return replace(
        job,
        cluster=replace(
            cluster, pools=(pool,), site=site, fabric=replace(cluster.fabric, sources={})
        ),
        strategy=AUTO,
        training=TrainingOptions(),
        terms=EnergyTerms(),
        warnings=(),
    )


def _estimate(screened: ScreenedSpace, index: int, setting: Setting) -> Estimate:
    cost_usd, carbon_gco2e = (
        float(screened.objective(name, setting)[index])
        if is_known(setting.job.cluster, name)
        else math.inf
        for name in ("cost", "carbon")
    )
    return Estimate(
        options=screened.options(index),
        step_time_s=float(screened.step_time_s[index]),
        energy_j=float(screened.energy_j[index]),
        memory_bytes=float(screened.memory_bytes[index]),
        average_power_w=float(screened.average_power_w[index]),
        peak_power_w=float(screened.peak_power_w[index]),
        cost_usd=cost_usd,
        carbon_gco2e=carbon_gco2e,
    )


def _reason(
    setting: Setting,
    screened: ScreenedSpace,
    counts: Mapping[str, int],
    missed: Mapping[str, int],
    nearest: str | None,
    *,
    limits: Limits,
) -> str:
    """Return in one line why no strategy is left, with the nearest one."""
    if not len(screened):
        meshes = max(screened.space.rejected.items(), key=lambda item: item[1], default=("", 0))[0]
        why = f" ({meshes})" if meshes else ""
        if lacking := not_offered(setting, limits):
            why += f"; {NOT_TRIED}: {'; '.join(lacking)}"
        return (
            f"no strategy: {setting.model.name} at a batch of {setting.job.data.global_batch} "
            f"splits over no mesh of {setting.job.cluster.devices} devices that is searched{why}"
        )
    turned = ", ".join(f"{count:,} {why}" for why, count in counts.items() if count)
    if missed and nearest is None:
        why = max(missed, key=lambda reason: missed[reason])
        return f"{why} when simulated, within it in closed form ({turned})"
    return f"{nearest or 'no strategy meets all constraints at once'} ({turned})"


def _nearest(
    setting: Setting,
    screened: ScreenedSpace,
    constraints: Constraints,
    least: Mapping[str, float],
) -> str | None:
    """Return what the strategy needs that misses the first binding constraint by least.

    None if each constraint is met by a strategy, or there is none.
    """
    if not len(screened):
        return None
    fits = screened.fits(constraints)
    if not fits.any():
        index = int(np.argmin(screened.memory_bytes / screened.capacity_bytes))
        need, capacity = float(screened.memory_bytes[index]), float(screened.capacity_bytes[index])
        words = options_in_words(screened.options(index))
        return (
            f"out of memory: the leanest strategy ({words}) needs {format_bytes(need)} of "
            f"{format_bytes(capacity)}"
            + (f", {constraints.margin:.0%} left free" if constraints.margin else "")
        )
    cap_w, pue = constraints.power_cap_w, setting.job.cluster.site.pue
    within = fits if cap_w is None else fits & (screened.average_power_w <= cap_w)
    if cap_w is not None and not within.any():
        least_w = float(np.where(fits, screened.average_power_w, np.inf).min())
        lowest_w, cap, site = (format_quantity(w, "W") for w in (least_w, cap_w, cap_w * pue))
        return (
            f"over the power cap: at least {lowest_w} on average, above {cap}, both before PUE "
            f"{pue:.3g} ({site} with it)"
        )
    for name, lowest in least.items():
        over, verb, shown = LIMITS[name]
        steps, all_of = constraints.steps or 1.0, "the run" if constraints.steps else "a step"
        most = shown(constraints.most[name] * steps)
        return f"{over}: {all_of} {verb}s at least {shown(lowest * steps)}, more than {most}"
    return None


def _least(setting: Setting, screened: ScreenedSpace, constraints: Constraints) -> dict[str, float]:
    """Return objective → least of it, of the first whose limit all exceed that else fit."""
    within, cap_w = screened.fits(constraints), constraints.power_cap_w
    if cap_w is not None:
        within = within & (screened.average_power_w <= cap_w)
    if not within.any():
        return {}
    in_run = screened.in_run(setting)
    for name in (each for each in LIMITS if each in constraints.most):
        lowest = float(np.where(within, in_run.objective(name, setting), np.inf).min())
        if lowest > constraints.most[name]:
            return {name: lowest}
    return {}
