"""Strategies under a power cap on devices with a lower power limit.

A cap that the devices at their own limit exceed leaves idle devices, or strategies that wait more.
The same strategy with a limit on each device may keep within it and be faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.closed_form.bounds import largest_bound, time_bound
from wattree.errors import HardwareError
from wattree.predict import Setting, predicted
from wattree.predict.generation import workload_setting
from wattree.predict.sweep import usual_limits_w
from wattree.search.objective import objective_of
from wattree.search.plan_result import RankedStrategy
from wattree.search.promising import Search, family_of, in_order, misses, ranked_strategy
from wattree.search.screen import OVER_POWER, ScreenedSpace, ranks_of, screen
from wattree.search.space import Space, StrategyGroup
from wattree.search.space_search import SearchedSpace, SpaceSearch

#: Of the limits of a sweep, each twentieth of the rated power, every second one is tried.
_STRIDE = 2
#: Strategies of each number of ranks that are estimated under every limit, the fastest first.
_MOST_ESTIMATED = 24
#: Simulations: about as many as a plan without limits has.
_MOST_SIMULATED = 20
#: A lower limit may save this share of what a step takes, other than time.
_MOST_SAVED = 0.3
#: Peaks of one strategy under two limits are in the ratio of their estimates but for this share.
_PEAK_ERROR = 0.02


def under_device_limits(
    seek: SpaceSearch, sought: Sequence[SearchedSpace], found: Sequence[RankedStrategy]
) -> SearchedSpace:
    """Return what is found of strategies that keep within the power cap under device limits.

    They are no candidates of their own: each was screened under the devices' own limit. Those that
    were rejected there for the cap count as feasible instead.

    Args:
        sought: What was searched with the devices' own limit.
        found: Strategies that meet every constraint there, best first.
    """
    nothing = replace(
        sought[0],
        found=Search(found=(), simulated=0, missed={}),
        candidates=0,
        feasible=0,
        rejected={},
    )
    if seek.constraints.power_cap_w is None:
        return nothing
    settings = _settings(seek.setting)
    least = objective_of(found[0].result, seek.objectives[0]) if found else np.inf
    space, over = _promising(seek, sought, least)
    if not settings or not len(space):
        return nothing
    tried = _Tried(seek, settings, space, least)
    while tried.simulated < _MOST_SIMULATED and tried.simulate_next():
        pass
    good = in_order(tried.good, seek.objectives[0])
    mended = {e.options for e in good}.intersection(compress(space, over))
    return replace(
        nothing,
        found=Search(found=good, simulated=tried.simulated, missed={}),
        feasible=len(mended),
        rejected={OVER_POWER: -len(mended)},
    )


def _settings(setting: Setting) -> dict[float, Setting]:
    """Return limit of the devices → setting of the job under it, below its own limit. [W]"""
    cluster = setting.job.cluster
    if cluster.is_mixed:
        return {}
    own_w = cluster.limit_w(cluster.pool) or cluster.node.device.tdp_w
    # Graphs of a step after the first are made of the model's own.
    model = setting.model if setting.decode is None else None
    found = {}
    for share_w in usual_limits_w(cluster)[::_STRIDE]:
        limit_w = round(share_w, 3)  # as a job file that is written says it
        if limit_w >= own_w:
            continue
        try:
            job = setting.job.capped(limit_w)
            found[limit_w] = workload_setting(job, setting.calibration, model=model)
        except HardwareError:  # the devices cannot keep it while they work
            break
    return found


def _promising(
    seek: SpaceSearch, sought: Sequence[SearchedSpace], least: float
) -> tuple[Space, list[bool]]:
    """Return the strategies that may be better than `least` under a limit, which slows them.

    And which of them were rejected for the cap without one.
    """
    name = seek.objectives[0]
    saved = 0.0 if name == "time" else _MOST_SAVED
    groups: list[StrategyGroup] = []
    over: list[bool] = []
    for part in sought:
        screened = part.screened
        values = screened.objective(name, seek.setting)
        within = screened.fits(seek.constraints)
        within &= (1.0 - saved) * values < least * (1.0 + largest_bound(seek.setting))
        chosen = _fastest(screened, values, np.flatnonzero(within))
        rejected = screened.rejections(seek.constraints, seek.setting)[OVER_POWER]
        over += rejected[chosen].tolist()
        first = 0
        for group in screened.space.groups:
            rows = chosen[(chosen >= first) & (chosen < first + len(group))] - first
            first += len(group)
            if len(rows):
                degrees = group.degrees.take(rows)
                groups.append(StrategyGroup(common=group.common, degrees=degrees))
    return Space(groups=tuple(groups), rejected={}), over


def _fastest(screened: ScreenedSpace, values: Floats, among: Integers) -> Integers:
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

    Estimated peaks are right but for a factor that depends on how smooth a job runs: that of the
    strategy itself where it was simulated under another limit, else that of the last one.

    Attributes:
        good: Those that meet every constraint.
        simulated: How many were simulated.
    """

    def __init__(
        self, seek: SpaceSearch, settings: Mapping[float, Setting], space: Space, least: float
    ) -> None:
        self.good: list[RankedStrategy] = []
        self.simulated = 0
        self._seek, self._settings, self._least = seek, list(settings.items()), least
        self._name = seek.objectives[0]
        screened = [screen(each, space, shared=seek.shared) for each in settings.values()]
        pairs = zip(settings.values(), screened, strict=True)
        self._values = np.array([s.objective(self._name, each) for each, s in pairs])
        self._peaks_w = np.array([each.peak_power_w for each in screened])
        away = [
            np.logical_or.reduce(list(each.rejections(seek.constraints, of).values()))
            for of, each in zip(settings.values(), screened, strict=True)
        ]
        self._open = ~np.array(away)
        self._options = list(space)
        self._families = [family_of(options) for options in self._options]
        self._bounds = np.array([time_bound(each, seek.setting) for each in self._options])
        self._factors = np.ones(len(self._options))
        self._known = np.zeros(len(self._options), dtype=bool)

    def simulate_next(self) -> bool:
        """Simulate the pair of the best estimate that may keep within the cap, if any is left."""
        cap_w = self._seek.constraints.power_cap_w
        assert cap_w is not None
        likely = self._peaks_w * self._factors <= cap_w * (1.0 + _PEAK_ERROR * self._known)
        worth = self._values < self._least * (1.0 + self._bounds)
        values = np.where(self._open & likely & worth, self._values, np.inf)
        place, index = np.unravel_index(int(np.argmin(values)), values.shape)
        if not np.isfinite(values[place, index]):
            return False
        self._simulate(int(place), int(index))
        return True

    def _simulate(self, place: int, index: int) -> None:
        limit_w, setting = self._settings[place]
        result = predicted(setting, self._options[index]).result
        self.simulated += 1
        self._open[place, index] = False
        factor = result.peak_power_w / self._peaks_w[place, index]
        self._factors[~self._known] = factor
        self._factors[index], self._known[index] = factor, True
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
