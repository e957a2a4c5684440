"""The most promising strategies of a screened space, simulated until none better can be left."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.closed_form.bounds import largest_bound, time_bound
from wattree.lowering.split_rules import has_equal_chunks
from wattree.predict import Setting, predicted
from wattree.search.ideas import NEAR
from wattree.search.objective import LIMITS, objective_of, run_objective, to_digits
from wattree.search.plan_result import RankedStrategy
from wattree.search.screen import (
    OUT_OF_MEMORY,
    OVER_POWER,
    Constraints,
    ScreenedSpace,
)
from wattree.search.sure_fit import fits_surely, surely
from wattree.strategy import StrategyOptions, options_in_words
from wattree.trace import Result

#: Strategies simulated before the search may stop, and after which it stops.
FEWEST, _MOST = 8, 24
#: The same of those that surely fit, where the best one may not.
_FEWEST_SURE, _MOST_SURE = 1, 3
#: Tasks that simulations may play in all, so that plans of many micro-batches take seconds too.
_TASK_BUDGET = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Strategies that were simulated after screening.

    Attributes:
        found: Those that meet every constraint, best first.
        simulated: How many were simulated.
        reason: Strategy that screening let pass and simulation rejected → why.
    """

    found: tuple[RankedStrategy, ...]
    simulated: int
    reason: Mapping[StrategyOptions, str] = field(default_factory=dict)

    @property
    def missed(self) -> Mapping[str, int]:
        """Reason → how many strategies simulation rejected for it."""
        return Counter(self.reason.values())


def search(
    setting: Setting,
    screened: ScreenedSpace,
    feasible: Flags,
    constraints: Constraints,
    *,
    objectives: Sequence[str] = ("time",),
    fewest: int = FEWEST,
    enough: int | None = None,
    sure: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Search:
    """Simulate the most promising strategies, ranked by the first of `objectives`.

    For each objective strategies are simulated by rising estimate until the next estimate is
    behind the best simulated one by more than the closed form's error. Of strategies that differ
    in the number of virtual stages, or of the layers that are recomputed, alone only the most
    promising is simulated: there are dozens, and they would crowd out the others.

    Args:
        feasible: Which strategies may be simulated.
        objectives: One, or several for a front.
        fewest: Strategies wanted that meet every constraint, if there are as many.
        enough: As many end the search, whatever may follow; None: the closed form's error decides.
        sure: If the best one may not fit, a few that surely do are simulated too, however far
            behind they are.
        progress: Called with (done, at most).
    """
    names = tuple(dict.fromkeys(objectives))
    simulated = _Simulated(setting, screened, constraints)
    report = progress or (lambda *_: None)
    for name in names:
        _simulate_best(simulated, name, feasible, fewest=fewest, enough=enough, progress=report)
    found = simulated.ranked(names[0])
    if sure and found and not constraints.any_memory and not fits_surely(found[0].result):
        _simulate_best(
            simulated,
            names[0],
            feasible & screened.fits(surely(constraints, setting)),
            fewest=_FEWEST_SURE,
            enough=min(_MOST_SURE, enough or _MOST_SURE),
            progress=report,
        )
        found = simulated.ranked(names[0])
    reason = {screened.options(index): why for index, why in simulated.reason.items()}
    return Search(found=found, simulated=len(simulated.all), reason=reason)


def _simulate_best(
    simulated: _Simulated,
    name: str,
    feasible: Flags,
    *,
    fewest: int,
    enough: int | None,
    progress: Callable[[int, int], None],
) -> None:
    """Simulate strategies by rising estimate of objective `name`, as `search` says."""
    estimates = simulated.screened.objective(name, simulated.setting)
    if not estimates[feasible].any():  # it costs nothing
        estimates = simulated.screened.objective("time", simulated.setting)
    queue = _Queue(simulated, estimates, feasible)
    best, good, count, over = np.inf, 0, 0, 0
    known: set[StrategyOptions] = set()
    budget, largest = simulated.tasks + _TASK_BUDGET, largest_bound(simulated.setting)
    most = min(max(_MOST, 2 * fewest), int(feasible.sum()))
    # Those above the power cap, or by estimate over a limit, have a number of their own, or they
    # would crowd out the others.
    while max(count, over) < most:
        if (index := queue.next(best, enough=good >= fewest)) is None:
            break
        # Below 0 while there is no best one, and 0 where that costs nothing.
        behind = estimates[index] / best - 1.0 if best > 0 else 0.0
        if good == enough or (good and simulated.tasks > budget):
            break
        if good >= fewest and behind > largest:
            queue.settle(best)
            continue
        index = _even(simulated, index, estimates, feasible)
        options = simulated.screened.options(index)
        family = family_of(options)
        # The closed form exceeds the simulation by no more than its bound: what is farther behind
        # cannot become the best.
        if family in known or (good >= fewest and behind > time_bound(options, simulated.setting)):
            continue
        result = simulated.result(index)
        if result is None and simulated.reason[index] == OVER_POWER:
            over += 1
            queue.over_power(index)
            continue
        if result is None and queue.is_over(index):
            over += 1
            continue
        count += 1
        if result is not None:
            good += 1
            known.add(family)
            best = min(best, objective_of(result, name))
        progress(count, most)


def _even(simulated: _Simulated, index: int, estimates: Floats, feasible: Flags) -> int:
    """Return the strategy with virtual stages of equal numbers of layers in place of another.

    Unless the other is better by more than predictions can tell apart: users and programs have
    equal ones, and nothing is gained where layers are dealt unequally.
    """
    group, row = simulated.screened.place(index)
    layers, stages = simulated.setting.model.layers, group.degrees.axes["pp"]
    equal = has_equal_chunks(layers, stages, group.degrees.virtual_stages)
    if group.degrees.virtual_stages[row] == 1 or equal[row]:
        return index
    equal &= group.degrees.virtual_stages > 1
    for column in (*group.degrees.axes.values(), group.degrees.micro_batch):
        equal &= column == column[row]
    found = np.flatnonzero(equal) + index - row
    found = found[feasible[found] & (estimates[found] <= (1.0 + NEAR) * estimates[index])]
    best = int(found[np.argmin(estimates[found])]) if len(found) else index
    return index if best in simulated.reason else best


def family_of(options: StrategyOptions) -> StrategyOptions:
    """Return what strategies share that differ in virtual stages, or recomputed layers, alone."""
    partly = options.memory.recompute.startswith("block_")
    return options.changed(
        virtual_stages=min(options.pipeline.virtual_stages, 2),
        recompute="block_2" if partly else options.memory.recompute,
    )


class _Queue:
    """Strategies still to simulate, by rising estimate, those likely to miss a constraint last.

    Estimated peaks are right but for a factor that depends on how smooth a job runs, so all are
    judged by that of the last one whose peak was above the cap. None is dropped for it: where
    enough others are found, those whose estimate is better follow, by peak where that is above.
    """

    def __init__(self, simulated: _Simulated, estimates: Floats, feasible: Flags) -> None:
        self._simulated, self._estimates = simulated, estimates
        constraints = simulated.constraints
        self._cap_w, self._limited = constraints.power_cap_w, bool(constraints.most)
        self._use = simulated.screened.use_of_limits(constraints, simulated.setting)
        self._order = self._late = np.flatnonzero(feasible)[:0]
        self._sort(np.flatnonzero(feasible), factor=1.0)

    def next(self, best: float, *, enough: bool) -> int | None:
        """Return the next strategy; None if none is left that may be better than `best`.

        Args:
            enough: As many were found as are wanted, so the others can wait.
        """
        if enough or not len(self._order):
            allowance = self._simulated.constraints.allowance * self._limited
            last = best * (1.0 + allowance)
            most = self._estimates[self._order[0]] if len(self._order) else last
            chosen = self._estimates[self._late] < most
            self._order = np.concatenate([self._late[chosen], self._order])
            self._late = self._late[~chosen]
        if not len(self._order):
            return None
        index, self._order = int(self._order[0]), self._order[1:]
        return index

    def settle(self, best: float) -> None:
        """Leave out those whose estimate is behind the best, but for those put off."""
        self._order = self._order[self._estimates[self._order] < best]

    def is_over(self, index: int) -> bool:
        """Return whether a limit of the run is missed by estimate."""
        return bool(self._use[index] > 1.0)

    def over_power(self, index: int) -> None:
        """Judge those left by the peak of a simulated one that is above the cap."""
        factor = self._simulated.all[index].peak_power_w / self._peaks_w[index]
        self._sort(np.concatenate([self._order, self._late]), factor=factor)

    @property
    def _peaks_w(self) -> Floats:
        return self._simulated.screened.peak_power_w

    def _sort(self, among: Integers, *, factor: float) -> None:
        among = among[np.argsort(self._estimates[among], kind="stable")]
        cap_w = math.inf if self._cap_w is None else self._cap_w
        likely = (self._peaks_w[among] * factor <= cap_w) & (self._use[among] <= 1.0)
        late = among[~likely]
        self._order = among[likely]
        over = np.maximum(self._peaks_w[late] / cap_w, self._use[late])
        # Those within all by estimate remain in order.
        self._late = late[np.argsort(np.maximum(over, 1.0), kind="stable")]


class _Simulated:
    """Strategies simulated so far, each once however often it is asked for."""

    def __init__(self, setting: Setting, screened: ScreenedSpace, constraints: Constraints) -> None:
        self.setting, self.screened, self.constraints = setting, screened, constraints
        self.all: dict[int, Result] = {}
        self.good: dict[int, Result] = {}
        self.reason: dict[int, str] = {}
        self.tasks = 0

    def result(self, index: int) -> Result | None:
        """Return the result of one strategy; None if it misses a constraint."""
        if index not in self.all:
            options = self.screened.options(index)
            result = predicted(self.setting, options).result
            self.all[index] = result
            self.tasks += result.simulation.tasks
            if reason := misses(result, self.constraints):
                self.reason[index] = reason
            else:
                self.good[index] = result
        return self.good.get(index)

    def ranked(self, objective: str) -> tuple[RankedStrategy, ...]:
        """Return those that meet every constraint, best first."""
        options = self.screened.options
        good = (ranked_strategy(options(index), result) for index, result in self.good.items())
        return in_order(good, objective)


def misses(result: Result, constraints: Constraints) -> str | None:
    """Return the constraint that a simulated strategy misses, if there is one."""
    memory = result.memory
    has_room = memory.fits and memory.peak_bytes <= constraints.usable(memory.capacity_bytes)
    if not has_room and not constraints.any_memory and not _overflows(result):
        return OUT_OF_MEMORY
    if constraints.power_cap_w is not None and result.peak_power_w > constraints.power_cap_w:
        return OVER_POWER
    for name, (reason, *_) in LIMITS.items():
        value = run_objective(result, name)
        if value is not None and value > constraints.most.get(name, math.inf):
            return reason
    return None


def _overflows(result: Result) -> bool:
    """Return whether a device is filled on purpose, because expanded memory holds the rest."""
    return result.memory.fits and bool(result.tiers)


def without_idle_recomputation(entries: Sequence[RankedStrategy]) -> tuple[RankedStrategy, ...]:
    """Return the strategies but those that recompute and need no less memory than without."""
    stored = {
        entry.options: entry.result.memory.peak_bytes
        for entry in entries
        if entry.options.memory.recompute == "none"
    }
    return tuple(
        entry
        for entry in entries
        if entry.options in stored
        or entry.result.memory.peak_bytes
        < stored.get(entry.options.changed(recompute="none"), math.inf)
    )


def in_order(entries: Iterable[RankedStrategy], objective: str) -> tuple[RankedStrategy, ...]:
    """Return strategies best first: by objective, of equals the one that needs less memory.

    Where the objective costs nothing, such as power of no price, by time.
    """
    found = list(entries)
    if not any(objective_of(entry.result, objective) for entry in found):
        objective = "time"

    def key(entry: RankedStrategy) -> tuple[float, float, str]:
        memory = entry.result.memory.peak_bytes
        return to_digits(objective_of(entry.result, objective)), memory, entry.label

    return tuple(sorted(found, key=key))


def ranked_strategy(
    options: StrategyOptions, result: Result, *, power_limit_w: float | None = None
) -> RankedStrategy:
    """Return a strategy with its result and its words.

    Args:
        power_limit_w: Of each device, where it is not the job's. [W]
    """
    label = options_in_words(options)
    if power_limit_w is not None:
        label = f"{label}, devices at {power_limit_w:g} W"
    return RankedStrategy(options=options, label=label, result=result, power_limit_w=power_limit_w)


def with_rivals(
    found: Sequence[RankedStrategy],
    rivals: Sequence[RankedStrategy | None],
    constraints: Constraints,
    objective: str,
) -> tuple[RankedStrategy, ...]:
    """Rank hand choices that meet every constraint with what was found."""
    known = {entry.options for entry in found}
    entries = [*found]
    entries += [
        rival
        for rival in rivals
        if rival and rival.options not in known and not misses(rival.result, constraints)
    ]
    return in_order(entries, objective)
