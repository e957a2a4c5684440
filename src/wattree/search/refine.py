"""Strategies near the most promising that the space does not list, as few of them are worth a look.

Three changes, each of strategies that screening found promising: another schedule of the pipeline
(zero-bubble, V, DualPipe), stages of unequal numbers of layers, which make up for what the first
and the last have besides, and recomputation of every N-th layer where all are too many and none too
few. Listing them for every mesh would take several times as long and find the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from wattree.closed_form.strategies import Shared
from wattree.lowering.stages import stage_misfits
from wattree.predict import Degrees, Setting
from wattree.search.balance import balanced_cuts
from wattree.search.limits import Limits
from wattree.search.plan_result import RankedStrategy
from wattree.search.probability import likely_better
from wattree.search.screen import ScreenedSpace
from wattree.search.space import Space, StrategyGroup
from wattree.strategy import AXES, Schedule, StrategyOptions
from wattree.strategy.schedules import PIPELINE_SCHEDULES

#: Strategies that are changed, by rising estimate: those whose degrees or options differ, not only
#: their virtual stages.
_BASES = 32
#: Shares of layers that are recomputed: every second, third, fourth, eighth.
_EVERY = (2, 3, 4, 8)
#: Half of the layers recomputed do not make up for more than twice the memory.
_MOST_OVER = 2.0
#: As sure as intervals are that a strategy is better.
_SURE = 0.8

_Bases = Mapping[StrategyOptions, list[StrategyOptions]]


def refined_space(
    setting: Setting, screened: ScreenedSpace, feasible: NDArray[np.bool_], limits: Limits
) -> Space:
    """Return the changed strategies.

    Args:
        setting: The job.
        screened: Its space, with estimates.
        feasible: Which of it meet the constraints.
        limits: Of the space; schedules and recomputations that it names are all there are.
    """
    groups: list[StrategyGroup] = []
    if setting.model.layers and setting.model.trainable_parameters:
        promising = _bases(screened, np.flatnonzero(feasible))
        if limits.schedules == Limits().schedules:
            groups += _scheduled(setting, promising, limits)
        if limits.cuts and not setting.job.cluster.is_mixed:
            groups += _cut(setting, promising, limits)
        if limits.recomputations is None:
            groups += _partly_recomputed(setting, screened, feasible, limits)
    return Space(groups=tuple(groups), rejected={})


def worth_it(setting: Setting, entry: RankedStrategy, best: RankedStrategy, objective: str) -> bool:
    """Return whether a changed strategy is offered to jobs that name no software.

    Few programs have its schedule, so it has to be better by more than predictions may be wrong.

    Args:
        setting: The job.
        entry: The changed strategy.
        best: The best of the space.
        objective: What the best has least of.
    """
    if entry.options.pipeline.schedule in Limits().schedules:
        return True
    calibration = setting.calibration
    likely = likely_better(entry.result, best.result, objective, calibration=calibration)
    return likely >= _SURE


def _bases(screened: ScreenedSpace, among: NDArray[np.int64]) -> _Bases:
    """Return the most promising strategies without a schedule's name, by what they share."""
    found: dict[StrategyOptions, list[StrategyOptions]] = {}
    seen: set[StrategyOptions] = set()
    for index in among[np.argsort(screened.step_time_s[among], kind="stable")]:
        options = screened.options(int(index))
        base = options.changed(schedule="1f1b", virtual_stages=1, stage_layers=None)
        if base in seen or options.colocation.processes > 1 or options.phantoms.enabled:
            continue
        seen.add(base)
        common = base.changed(**dict.fromkeys(AXES, 1), micro_batch=1)
        found.setdefault(common, []).append(base)
        if len(seen) == _BASES:
            break
    return found


def _degrees(setting: Setting, bases: list[StrategyOptions]) -> Degrees:
    return Degrees.of(bases, setting.job.data.global_batch)


def _scheduled(setting: Setting, promising: _Bases, limits: Limits) -> Iterator[StrategyGroup]:
    """Yield pipelines under the schedules that spaces do not list."""
    for name in PIPELINE_SCHEDULES:
        offered = limits.offer is None or limits.offer.has("schedule", name)
        if name in limits.schedules or not offered:
            continue
        for common, bases in promising.items():
            own = [
                base
                for base in bases
                if base.pp > 1 and not stage_misfits(setting.model, base.pp, Schedule(name=name))
            ]
            if own:
                changed = common.changed(schedule=name)
                yield StrategyGroup(common=changed, degrees=_degrees(setting, own))


def _cut(setting: Setting, promising: _Bases, limits: Limits) -> Iterator[StrategyGroup]:
    """Yield pipelines whose longest stage is as short as layers allow."""
    if limits.offer is not None and not limits.offer.has("schedule", "1f1b"):
        return
    shared = Shared()
    for common, bases in promising.items():
        own = [base for base in bases if base.pp > 1]
        if own:
            cuts = balanced_cuts(setting, common, _degrees(setting, own), shared, alike=True)
            for options, degrees in cuts:
                yield StrategyGroup(common=options, degrees=degrees)


def _partly_recomputed(
    setting: Setting, screened: ScreenedSpace, feasible: NDArray[np.bool_], limits: Limits
) -> Iterator[StrategyGroup]:
    """Yield strategies that would be faster than the best, had they the memory."""
    if limits.offer is not None and not limits.offer.has("recompute", "block_2"):
        return
    best_s = screened.step_time_s[feasible].min(initial=np.inf)
    stored = np.concatenate(
        [
            np.full(len(group), group.common.memory.recompute == "none")
            for group in screened.space.groups
        ]
        or [np.zeros(0, dtype=bool)]
    )
    over = screened.memory_bytes / screened.capacity_bytes
    near = (over > 1.0) & (over < _MOST_OVER)
    among = np.flatnonzero(stored & near & ~feasible & (screened.step_time_s < best_s))
    for common, bases in _bases(screened, among).items():
        for every in _EVERY:
            if every <= setting.model.layers:
                options = common.changed(recompute=f"block_{every}")
                yield StrategyGroup(common=options, degrees=_degrees(setting, bases))
