"""Strategies on devices with a lower power limit, where power, energy or carbon counts.

A lower limit on each device is slower and saves energy. It may keep a strategy within a power cap,
or within the energy, carbon or cost that a run may take, that it exceeds at the devices' own limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from wattree.accounts.bill import energy_usd_per_j
from wattree.arrays import Flags, Floats, Integers
from wattree.closed_form.bounds import largest_bound, time_bound
from wattree.errors import HardwareError
from wattree.hardware import Cluster
from wattree.predict import Setting, predicted
from wattree.predict.generation import workload_setting
from wattree.predict.sweep import usual_limits_w
from wattree.search.objective import objective_of, run_objective
from wattree.search.plan_result import RankedStrategy
from wattree.search.promising import Search, family_of, in_order, misses, ranked_strategy
from wattree.search.screen import LIMIT_ALLOWANCE, OVER_POWER, ScreenedSpace, ranks_of, screen
from wattree.search.space import Space, StrategyGroup
from wattree.search.space_search import SearchedSpace, SpaceSearch
from wattree.strategy import StrategyOptions
from wattree.trace import Result

#: Strategies of each number of ranks that are estimated under every limit, the best first.
_MOST_ESTIMATED = 24
#: Simulations by one objective: about as many as a plan without limits has.
_MOST_SIMULATED = 20
#: The fastest so many have limits between those of a sweep too: to a sixteenth of the distance.
_RAISED, _HALVINGS = 6, 4
#: A lower limit may save this share of what a step takes, other than time.
_MOST_SAVED = 0.3
#: What one strategy draws or takes under two limits is in the ratio of its estimates but for this.
_RATIO_ERROR = 0.02


def most_saved(name: str, cluster: Cluster) -> float:
    """Return the largest share of an objective that a lower limit of the devices may save."""
    priced = name == "cost" and energy_usd_per_j(cluster) is not None
    return _MOST_SAVED if priced or name in {"energy", "carbon"} else 0.0


def under_device_limits(
    seek: SpaceSearch,
    wanted: Sequence[str],
    sought: Sequence[SearchedSpace],
    found: Sequence[RankedStrategy],
) -> SearchedSpace:
    """Return what is found of strategies that meet the constraints under device limits.

    They are no candidates of their own: each was screened under the devices' own limit. Those that
    were rejected there count as feasible instead.

    Args:
        wanted: Objectives, the first of which ranks.
        sought: What was searched with the devices' own limit.
        found: Strategies that meet every constraint there, best first.
    """
    nothing = replace(
        sought[0], found=Search(found=(), simulated=0), candidates=0, feasible=0, rejected={}
    )
    cluster, capped = seek.setting.job.cluster, seek.constraints.power_cap_w is not None
    counts = [name for name in seek.objectives if most_saved(name, cluster)]
    if not (capped or counts) or not (settings := _settings(seek.setting)):
        return nothing
    good: dict[tuple[StrategyOptions, float], RankedStrategy] = {}
    reason: dict[StrategyOptions, str] = {}
    simulated = 0
    # Whether anything meets the constraints must not depend on the objective.
    for name in dict.fromkeys((*wanted, *seek.objectives, "energy")):
        if name not in wanted and (found or good):
            break
        if not capped and found and not most_saved(name, cluster):
            continue
        known = [entry.result for entry in (*found, *good.values())]
        least = min((objective_of(result, name) for result in known), default=np.inf)
        space, reasons = _promising(seek, sought, name, least)
        if len(space):
            tried = _Tried(seek, settings, space, name, least)
            while tried.simulated < _MOST_SIMULATED and tried.simulate_next():
                pass
            good |= {(each.options, each.power_limit_w or 0.0): each for each in tried.good}
            simulated += tried.simulated
            reason |= reasons
    limits = capped or seek.constraints.most
    if limits and not most_saved(wanted[0], cluster):  # else the best one tried is near the best
        limit_w = 0.0
        for entry in in_order(good.values(), wanted[0])[:_RAISED]:
            raised, tries = _raised(seek, settings, entry, wanted[0], first_w=limit_w)
            simulated += tries
            limit_w = raised.power_limit_w or 0.0
            if len(wanted) == 1:  # else it may be one of the front
                del good[entry.options, entry.power_limit_w or 0.0]
            good[raised.options, limit_w] = raised
    mended = {options: reason[options] for options, _ in good if reason[options]}
    return replace(
        nothing,
        found=Search(found=in_order(good.values(), wanted[0]), simulated=simulated),
        feasible=len(mended),
        rejected={why: -count for why, count in Counter(mended.values()).items()},
    )


def _settings(setting: Setting) -> dict[float, Setting]:
    """Return limit of the devices → setting of the job under it, below its own limit. [W]"""
    cluster = setting.job.cluster
    if cluster.is_mixed:
        return {}
    own_w, found = _own_limit_w(cluster), {}
    for share_w in usual_limits_w(cluster):
        limit_w = round(share_w, 3)  # as a job file that is written says it
        if limit_w >= own_w:
            continue
        try:
            found[limit_w] = _limited(setting, limit_w)
        except HardwareError:  # the devices cannot keep it while they work
            break
    return found


def _own_limit_w(cluster: Cluster) -> float:
    return cluster.limit_w(cluster.pool) or cluster.node.device.tdp_w


def _limited(setting: Setting, limit_w: float) -> Setting:
    # Graphs of a step after the first are made of the model's own.
    model = setting.model if setting.decode is None else None
    return workload_setting(setting.job.capped(limit_w), setting.calibration, model=model)


def _raised(
    seek: SpaceSearch,
    settings: Mapping[float, Setting],
    entry: RankedStrategy,
    name: str,
    *,
    first_w: float,
) -> tuple[RankedStrategy, int]:
    """Return a strategy under the best limit up to the next one tried, and the simulations.

    A higher limit is faster and draws more: the best of time is where a constraint begins to bind.

    Args:
        first_w: Tried first, and enough: that of a strategy like it. [W]
    """
    low_w, own_w = entry.power_limit_w or 0.0, _own_limit_w(seek.setting.job.cluster)
    high_w = min(limit_w for limit_w in (*settings, own_w) if limit_w > low_w)
    limit_w, tries = first_w, 0
    while tries < _HALVINGS:
        if not low_w < limit_w < high_w:
            limit_w = float(round((low_w + high_w) / 2.0))  # what devices are set to
        if not low_w < limit_w < high_w:
            break
        tries += 1
        result = predicted(_limited(seek.setting, limit_w), entry.options).result
        better = objective_of(result, name) < objective_of(entry.result, name)
        if better and misses(result, seek.constraints) is None:
            entry, low_w = ranked_strategy(entry.options, result, power_limit_w=limit_w), limit_w
            if limit_w == first_w:
                break
        else:
            high_w = limit_w
    return entry, tries


def _promising(
    seek: SpaceSearch, sought: Sequence[SearchedSpace], name: str, least: float
) -> tuple[Space, dict[StrategyOptions, str]]:
    """Return the strategies that may be better than `least` under a limit.

    And why each was rejected without one; empty if it was not.
    """
    saved = most_saved(name, seek.setting.job.cluster)
    groups: list[StrategyGroup] = []
    reasons: dict[StrategyOptions, str] = {}
    for part in sought:
        screened = part.screened
        values = screened.objective(name, seek.setting)
        within = screened.fits(seek.constraints)
        within &= (1.0 - saved) * values < least * (1.0 + largest_bound(seek.setting))
        chosen = _best(screened, values, np.flatnonzero(within))
        rejected = screened.rejections(seek.constraints, seek.setting)
        for index in chosen.tolist():
            options = screened.options(index)
            why = [reason for reason, broken in rejected.items() if broken[index]]
            reasons[options] = why[0] if why else part.found.reason.get(options, "")
        first = 0
        for group in screened.space.groups:
            rows = chosen[(chosen >= first) & (chosen < first + len(group))] - first
            first += len(group)
            if len(rows):
                degrees = group.degrees.take(rows)
                groups.append(StrategyGroup(common=group.common, degrees=degrees))
    return Space(groups=tuple(groups), rejected={}), reasons


def _best(screened: ScreenedSpace, values: Floats, among: Integers) -> Integers:
    """Return the indices of the best strategies of each number of ranks, ascending."""
    ranks = ranks_of(screened.space)[among]
    order = among[np.argsort(values[among], kind="stable")]
    of = dict(zip(among.tolist(), ranks.tolist(), strict=True))
    left = dict.fromkeys(set(of.values()), _MOST_ESTIMATED)
    kept = []
    for index in order.tolist():
        if left[of[index]]:
            left[of[index]] -= 1
            kept.append(index)
    return np.array(sorted(kept), dtype=np.int64)


class _Tried:
    """Pairs of a limit and a strategy, simulated by rising estimate.

    Estimates of what is constrained are right but for a factor that depends on how smooth a job
    runs: that of the strategy itself where it was simulated under another limit, else that of the
    last one.

    Attributes:
        good: Those that meet every constraint.
        simulated: How many were simulated.
    """

    def __init__(
        self,
        seek: SpaceSearch,
        settings: Mapping[float, Setting],
        space: Space,
        name: str,
        least: float,
    ) -> None:
        self.good: list[RankedStrategy] = []
        self.simulated = 0
        self._seek, self._settings, self._least = seek, list(settings.items()), least
        self._name = name
        screened = [screen(each, space, shared=seek.shared) for each in settings.values()]
        pairs = list(zip(settings.values(), screened, strict=True))
        self._values = np.array([s.objective(name, each) for each, s in pairs])
        self._most = dict(seek.constraints.most)
        self._estimates = {
            each: np.array([s.in_run(of).objective(each, of) for of, s in pairs])
            for each in self._most
        }
        if (cap_w := seek.constraints.power_cap_w) is not None:
            self._most[OVER_POWER] = cap_w
            self._estimates[OVER_POWER] = np.array([each.peak_power_w for each in screened])
        rejected = [each.rejections(seek.constraints, of).values() for of, each in pairs]
        self._open = ~np.array([np.logical_or.reduce(list(each)) for each in rejected])
        self._options = list(space)
        self._families = [family_of(options) for options in self._options]
        self._bounds = np.array([time_bound(each, seek.setting) for each in self._options])
        self._factors = {each: np.ones(len(self._options)) for each in self._most}
        self._known = np.zeros(len(self._options), dtype=bool)

    def simulate_next(self) -> bool:
        """Simulate the pair of the best estimate that may meet all constraints, if any is left."""
        worth = self._values < self._least * (1.0 + self._bounds)
        values = np.where(self._open & worth & self._likely(), self._values, np.inf)
        place, index = np.unravel_index(int(np.argmin(values)), values.shape)
        if not np.isfinite(values[place, index]):
            return False
        self._simulate(int(place), int(index))
        return True

    def _likely(self) -> Flags:
        """Return which pairs are within every constraint, `(limits, strategies)`."""
        likely = np.ones(self._values.shape, dtype=bool)
        for name, most in self._most.items():
            unknown = 0.0 if name == OVER_POWER else LIMIT_ALLOWANCE
            room = 1.0 + np.where(self._known, _RATIO_ERROR, unknown)
            likely &= self._estimates[name] * self._factors[name] <= most * room
        return likely

    def _simulate(self, place: int, index: int) -> None:
        limit_w, setting = self._settings[place]
        result = predicted(setting, self._options[index]).result
        self.simulated += 1
        self._open[place, index] = False
        self._learn(place, index, result)
        reason = misses(result, self._seek.constraints)
        if reason is not None:
            # A higher limit draws more.
            self._open[: place + 1, index] &= reason != OVER_POWER
            return
        entry = ranked_strategy(self._options[index], result, power_limit_w=limit_w)
        self.good.append(entry)
        self._least = min(self._least, objective_of(result, self._name))
        # Strategies that differ in details alone would crowd out the others, and a lower limit is
        # slower.
        alike = [each == self._families[index] for each in self._families]
        self._open[place, alike] = False
        if self._name == "time":
            self._open[place:, index] = False

    def _learn(self, place: int, index: int, result: Result) -> None:
        """Correct the estimates of what is constrained by a simulated pair."""
        for name, estimates in self._estimates.items():
            value = result.peak_power_w if name == OVER_POWER else run_objective(result, name)
            assert value is not None  # `plan` refuses limits that the job has no figures for
            factor = value / max(float(estimates[place, index]), 1e-300)
            self._factors[name][~self._known] = factor
            self._factors[name][index] = factor
        self._known[index] = True
