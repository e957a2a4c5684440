"""Strategies near the most promising that the space does not list, as few of them are worth a look.

Two changes, each of strategies that screening found promising, or would have if they had the
memory: another schedule of the pipeline (zero-bubble, V, DualPipe), and stages of unequal numbers
of layers, which make up for what the first and the last have besides. Of these and of the listed
ones those that would be faster than the best, had they the memory, have attention or every N-th
layer recomputed. Listing them for every mesh would take several times as long and find the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from wattree.arrays import Flags, Integers
from wattree.closed_form.strategies import Shared
from wattree.job.offers import offer_of
from wattree.lowering.split_rules import has_attention
from wattree.lowering.stages import stage_misfits
from wattree.predict import Degrees, Setting
from wattree.search.balance import balanced_cuts
from wattree.search.limits import Limits
from wattree.search.option_sets import recomputations
from wattree.search.plan_result import RankedStrategy
from wattree.search.probability import likely_better
from wattree.search.screen import Constraints, ScreenedSpace, screen
from wattree.search.space import Space, StrategyGroup
from wattree.search.space_search import SearchedSpace, SpaceSearch
from wattree.search.sure_fit import fits_surely, surely
from wattree.strategy import AXES, Schedule, StrategyOptions
from wattree.strategy.schedules import PIPELINE_SCHEDULES

#: Strategies that are changed, by rising estimate: those whose degrees or options differ, not only
#: their virtual stages.
_BASES = 32
#: Shares of layers that are recomputed: every second, third, fourth, eighth.
_EVERY = (2, 3, 4, 8)
#: As sure as intervals are that a strategy is better.
SURE = 0.8
#: Changed strategies that are simulated, at least and at most, if they may be better.
_FEWEST, _ENOUGH = 2, 6

#: What strategies of a group differ in.
_DEGREES = (*AXES, "micro_batch", "virtual_stages", "schedule")


def searched_near(
    seek: SpaceSearch, first: SearchedSpace, found: Sequence[RankedStrategy], limits: Limits
) -> tuple[SearchedSpace, list[RankedStrategy]]:
    """Return what is found near the best strategies of a space, and what of it is worth it.

    If the best one may not fit, also near the best of those that surely do.

    Args:
        first: The space.
        found: Strategies that meet every constraint, best first.
    """
    setting, own = seek.setting, seek.constraints
    is_sure = fits_surely(found[0].result)
    space = refined_space(
        setting,
        first.screened,
        first.meets,
        limits,
        constraints=(own,) if is_sure else (own, surely(own, setting)),
        shared=seek.shared,
    )
    few = replace(seek, fewest=_FEWEST, enough=_ENOUGH)
    near = few.within(space, than=found, like=first.screened.space)
    worthy = (
        entry
        for entry in near.found.found
        if limits.offer is not None or worth_it(setting, entry, found[0], seek.objectives[0])
    )
    return near, list(worthy)


def refined_space(
    setting: Setting,
    screened: ScreenedSpace,
    feasible: Flags,
    limits: Limits,
    *,
    constraints: Sequence[Constraints],
    shared: Shared,
) -> Space:
    """Return the changed strategies.

    Args:
        feasible: Which of it meet the constraints, but for what is stricter of the others.
        limits: Of the space; schedules and recomputations that it names are all there are.
        constraints: Strategies are changed near the best that meets each of them.
        shared: Keeps block programs from call to call.
    """
    if not setting.model.layers or not setting.model.trainable_parameters:
        return Space(groups=(), rejected={})
    meets = [feasible & screened.fits(each) for each in constraints]
    best_s = [screened.step_time_s[mask].min(initial=np.inf) for mask in meets]
    promising = dict.fromkeys(
        options for mask in meets for _, options in _promising(screened, np.flatnonzero(mask))
    )
    partly = limits.recomputations is None

    def over_any(space: ScreenedSpace) -> dict[StrategyOptions, float]:
        found = list(zip(constraints, best_s, strict=True))[::-1]  # the loosest counts
        return {o: over for each in found for o, over in over_memory(space, *each).items()}

    over = over_any(screened) if partly else {}
    changed: list[StrategyGroup] = []
    if limits.schedules == Limits().schedules:
        bases = dict.fromkeys(map(_plain, (*promising, *over)))
        changed += _grouped(setting, _scheduled(setting, bases, limits))
    if limits.cuts and not setting.job.cluster.is_mixed:
        changed += _cut(setting, dict.fromkeys(map(_plain, promising)), limits, shared)
    if partly:
        space = Space(groups=tuple(changed), rejected={})
        over |= over_any(screen(setting, space, shared=shared, like=screened.space))
        changed += _grouped(setting, _partly_recomputed(setting, over, limits))
    return Space(groups=tuple(changed), rejected={})


def worth_it(setting: Setting, entry: RankedStrategy, best: RankedStrategy, objective: str) -> bool:
    """Return whether a changed strategy is offered where any software will do.

    Few programs have its schedule, so unless the job's own has, it has to be better by more than
    predictions may be wrong.

    Args:
        best: The best of the space.
        objective: What the best has least of.
    """
    schedule, own = entry.options.pipeline.schedule, offer_of(setting.job.software)
    if schedule in Limits().schedules or (own is not None and own.has("schedule", schedule)):
        return True
    calibration = setting.calibration
    likely = likely_better(entry.result, best.result, objective, calibration=calibration)
    return likely >= SURE


def _promising(screened: ScreenedSpace, among: Integers) -> Iterator[tuple[int, StrategyOptions]]:
    """Yield the strategies with the least estimates, under any schedule, with their places."""
    seen: set[StrategyOptions] = set()
    for index in among[np.argsort(screened.step_time_s[among], kind="stable")]:
        options = screened.options(int(index))
        if options.colocation.processes > 1 or options.phantoms.enabled:
            continue
        seen.add(_plain(options))
        if len(seen) > _BASES:
            return
        yield int(index), options


def over_memory(
    screened: ScreenedSpace, constraints: Constraints, best_s: float
) -> dict[StrategyOptions, float]:
    """Return strategies that would be faster than the best → the memory they need of what is.

    Args:
        best_s: Step time of the best. [s]
    """
    groups = screened.space.groups
    sizes = np.array([len(group) for group in groups], dtype=np.int64)
    whole = np.array([group.common.memory.recompute == "none" for group in groups], dtype=np.bool_)
    stored = np.repeat(whole, sizes)
    over = screened.memory_bytes / (constraints.usable(1.0) * screened.capacity_bytes)
    near = ~screened.fits(constraints) & (over < _most_over(min(_EVERY)))
    among = np.flatnonzero(stored & near & (screened.step_time_s < best_s))
    return {options: float(over[index]) for index, options in _promising(screened, among)}


def _most_over(every: int) -> float:
    """Return the memory of what is that recomputation of every so many layers may make up for."""
    return every / (every - 1)


def _plain(options: StrategyOptions) -> StrategyOptions:
    """Return a strategy without a schedule's name and cut."""
    return options.changed(schedule="1f1b", virtual_stages=1, stage_layers=None)


def _grouped(setting: Setting, found: Iterable[StrategyOptions]) -> Iterator[StrategyGroup]:
    """Yield strategies by what they share."""
    groups: dict[StrategyOptions, list[StrategyOptions]] = {}
    for options in found:
        schedule = options.pipeline.schedule
        listed = "1f1b" if schedule == "interleaved" else schedule
        common = options.changed(
            **dict.fromkeys(AXES, 1), micro_batch=1, virtual_stages=1, schedule=listed
        )
        groups.setdefault(common, []).append(options)
    known: dict[tuple[object, ...], Degrees] = {}  # estimates look up costs by the object
    for common, alike in groups.items():
        key = tuple(tuple(o.value(name) for name in _DEGREES) for o in alike)
        if key not in known:
            known[key] = Degrees.of(alike, setting.job.data.global_batch)
        yield StrategyGroup(common=common, degrees=known[key])


def _scheduled(
    setting: Setting, bases: Iterable[StrategyOptions], limits: Limits
) -> Iterator[StrategyOptions]:
    """Yield pipelines under the schedules that spaces do not list."""
    pipelines = [base for base in bases if base.pp > 1]
    for name in PIPELINE_SCHEDULES:
        if name in limits.schedules:
            continue
        for base in pipelines:
            changed = base.changed(schedule=name)
            misfits = stage_misfits(setting.model, base.pp, Schedule(name=name))
            if not misfits and _is_offered(changed, setting, limits):
                yield changed


def _is_offered(options: StrategyOptions, setting: Setting, limits: Limits) -> bool:
    """Return whether the software can run a strategy."""
    batch = setting.job.data.global_batch
    return limits.offer is None or not limits.offer.lacks(options, global_batch=batch)


def _cut(
    setting: Setting, bases: Iterable[StrategyOptions], limits: Limits, shared: Shared
) -> Iterator[StrategyGroup]:
    """Yield pipelines whose longest stage is as short as layers allow."""
    offer = limits.offer
    if offer is not None and (offer.stages != "any" or not offer.has("schedule", "1f1b")):
        return
    pipelines = (base for base in bases if base.pp > 1 and _is_offered(base, setting, limits))
    for group in _grouped(setting, pipelines):
        cuts = balanced_cuts(setting, group.common, group.degrees, shared, alike=True)
        for options, degrees in cuts:
            yield StrategyGroup(common=options, degrees=degrees)


def _partly_recomputed(
    setting: Setting, bases: Mapping[StrategyOptions, float], limits: Limits
) -> Iterator[StrategyOptions]:
    """Yield strategies that store less, where that may be enough."""
    parts = {f"block_{every}": every for every in _EVERY if every <= setting.model.layers}
    if has_attention(setting.model) and "selective" not in recomputations(setting, limits):
        parts["selective"] = max(_EVERY)  # attention saves no more than few layers
    for part, every in parts.items():
        if limits.offer is None or limits.offer.has("recompute", part):
            own = (base for base, over in bases.items() if over < _most_over(every))
            yield from (base.changed(recompute=part) for base in own)
