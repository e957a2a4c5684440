"""`plan`: screen every strategy in closed form, simulate the best, rank, explain."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattree.cost import load_calibration
from wattree.errors import JobError, StrategyError
from wattree.job import Job
from wattree.predict import Setting, predicted, setting_of
from wattree.search.explain import explanation
from wattree.search.hand import hand_choices
from wattree.search.infeasible import infeasible
from wattree.search.objective import OBJECTIVES, objective_of
from wattree.search.pareto import pareto_front
from wattree.search.plan_result import Plan, RankedStrategy
from wattree.search.screen import (
    OUT_OF_MEMORY,
    OVER_POWER,
    PAST_DEADLINE,
    Constraints,
    Screened,
    screen,
)
from wattree.search.space import Limits, device_counts, enumerate_space
from wattree.strategy import StrategyOptions, options_in_words
from wattree.trace import Result

__all__ = ["Search", "plan", "search"]

Floats = NDArray[np.float64]
Progress = Callable[[str, int, int], None]

#: Strategies simulated before the search may stop, and after which it stops.
_FEWEST, _MOST = 8, 24
#: The closed form exceeds the simulation by no more than this (`benchmarks.screening` measures
#: it): a strategy whose estimate is behind the best found by more cannot become the best.
_MARGIN = 0.03
#: Tasks that simulations may play in all, so that plans of many micro-batches take seconds too.
_TASK_BUDGET = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Strategies that were simulated after screening.

    Attributes:
        found: Those that meet every constraint, best first.
        simulated: How many were simulated.
        missed: Reason → strategies that screening let pass and simulation turned away.
    """

    found: tuple[RankedStrategy, ...]
    simulated: int
    missed: Mapping[str, int]


def plan(
    job: Job,
    *,
    objective: str = "time",
    pareto: tuple[str, str] | None = None,
    max_devices: int | None = None,
    power_cap_w: float | None = None,
    deadline_s: float | None = None,
    top: int = 10,
    allow_approximate: bool = False,
    calibration: Path | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Return the strategies that fit a job, best first, and why the first one wins.

    Args:
        job: What to train on what; its own strategy is not read.
        objective: What the best has least of, per step: `time`, `energy`, `cost` or `carbon`.
        pareto: Two objectives whose front is wanted too.
        max_devices: Use no more devices.
        power_cap_w: Highest power of the job's nodes at any moment, before PUE. [W]
        deadline_s: Longest time for all of `training.steps`. [s]
        top: Strategies to return.
        allow_approximate: Also try strategies that change the trained result. No preset does
            so far, so this changes nothing yet.
        calibration: File of constants; the shipped one if None.
        limits: Part of the space to search; all of it if None.
        progress: Called with (stage, done, total).

    Raises:
        InfeasibleError: No strategy meets the constraints; it says what comes nearest.
        JobError: The objective needs a price or a carbon intensity that the job lacks.
    """
    del allow_approximate
    began = time.perf_counter()
    setting = setting_of(job, load_calibration(calibration))
    wanted = (objective, *(pareto or ()))
    _check_objectives(setting, wanted)
    constraints = Constraints(
        memory_bytes=job.cluster.node.device.memory_bytes,
        power_cap_w=power_cap_w,
        step_time_s=None if deadline_s is None else deadline_s / max(job.training.steps, 1),
    )
    # With all devices at work the fastest is fastest; what else is asked may need fewer.
    fewer = max_devices is not None or power_cap_w is not None
    fewer = fewer or any(name != "time" for name in wanted)
    ranks = device_counts(
        job.cluster.devices, job.cluster.node.devices, max_devices=max_devices, fewer=fewer
    )
    space = enumerate_space(setting, ranks=ranks, limits=limits)
    report = progress or (lambda *_: None)
    screened = screen(
        setting, space, progress=lambda done: report("screening", done, max(len(space), 1))
    )
    turned_away = screened.rejections(constraints)
    rejected = dict(space.rejected)
    rejected |= {reason: int(mask.sum()) for reason, mask in turned_away.items() if mask.any()}
    feasible = ~np.logical_or.reduce(list(turned_away.values()))
    found = search(
        setting,
        screened,
        feasible,
        constraints,
        # The fastest save energy at rest, so they are always worth a look.
        objectives=tuple(dict.fromkeys((*wanted, "time"))),
        fewest=max(_FEWEST, top),
        progress=lambda done, total: report("simulating", done, total),
    )
    for reason, count in found.missed.items():
        rejected[reason] = rejected.get(reason, 0) + count
    if not found.found:
        raise infeasible(setting, screened, constraints, rejected)
    hands = hand_choices(setting, found.found[0].options.ranks)
    rivals = {name: _simulated(setting, options) for name, options in hands.items()}
    ranked = _with_rivals(found.found, list(rivals.values()), constraints, objective)
    front = None if pareto is None else _front(ranked, pareto)
    return Plan(
        candidates=len(space) + sum(space.rejected.values()),
        simulated=found.simulated + sum(rival is not None for rival in rivals.values()),
        feasible=int(feasible.sum()) - sum(found.missed.values()),
        wall_s=time.perf_counter() - began,
        objective=objective,
        best=ranked[0],
        ranked=ranked[:top],
        explanation=explanation(setting, objective, ranked, rivals),
        rejected=rejected,
        pareto=front,
    )


def search(
    setting: Setting,
    screened: Screened,
    feasible: NDArray[np.bool_],
    constraints: Constraints,
    *,
    objectives: Sequence[str] = ("time",),
    fewest: int = _FEWEST,
    progress: Callable[[int, int], None] | None = None,
) -> Search:
    """Simulate the most promising strategies, ranked by the first of `objectives`.

    For each objective strategies are simulated by rising estimate until the next estimate is
    behind the best simulated one by more than the closed form's error. Of strategies that differ
    in the number of virtual stages alone only the most promising is simulated: there are dozens,
    alike within a per mille, and they would crowd out the others.

    Args:
        setting: The job.
        screened: Estimates.
        feasible: Which strategies may be simulated.
        constraints: What a simulated one must keep to.
        objectives: One, or several for a front.
        fewest: Strategies wanted that meet every constraint, if there are as many.
        progress: Called with (done, at most).
    """
    names = tuple(dict.fromkeys(objectives))
    played = _Played(setting, screened, constraints)
    for name in names:
        estimates = screened.objective(name, setting)
        order = np.flatnonzero(feasible)
        order = order[np.argsort(estimates[order], kind="stable")]
        best, good, count = np.inf, 0, 0
        known: set[StrategyOptions] = set()
        budget = played.tasks + _TASK_BUDGET
        most = min(max(_MOST, 2 * fewest), len(order))
        while len(order) and count < most:
            index, order = int(order[0]), order[1:]
            settled = good >= fewest and estimates[index] > best * (1 + _MARGIN)
            if settled or (good and played.tasks > budget):
                break
            family = _family(screened.options(index))
            if family in known:
                continue
            count += 1
            if (result := played.result(index)) is not None:
                good += 1
                known.add(family)
                best = min(best, objective_of(result, name))
            elif played.reason[index] == OVER_POWER:
                order = _less_hungry(order, screened, played.all[index], index, constraints)
            if progress is not None:
                progress(count, most)
    entries = [_ranked(screened.options(index), result) for index, result in played.good.items()]
    entries.sort(key=lambda e: (objective_of(e.result, names[0]), e.label))
    missed = Counter(played.reason.values())
    return Search(found=tuple(entries), simulated=len(played.all), missed=missed)


def _family(options: StrategyOptions) -> StrategyOptions:
    """Return what strategies share that differ in the number of virtual stages alone."""
    return replace(options, virtual_stages=min(options.virtual_stages, 2))


def _less_hungry(
    order: NDArray[np.int64],
    screened: Screened,
    result: Result,
    index: int,
    constraints: Constraints,
) -> NDArray[np.int64]:
    """Return what is worth trying after a strategy whose peak was above the cap.

    Estimated peaks are right but for a factor that depends on how smooth a job runs, so the
    others are judged by this one's. If none is left, the least hungry come first.
    """
    assert constraints.power_cap_w is not None
    peaks = screened.peak_power_w
    likely = peaks[order] * result.peak_power_w / peaks[index] <= constraints.power_cap_w
    if likely.any():
        return np.asarray(order[likely])
    return np.asarray(order[np.argsort(peaks[order], kind="stable")])


class _Played:
    """Strategies simulated so far, each once however often it is asked for."""

    def __init__(self, setting: Setting, screened: Screened, constraints: Constraints) -> None:
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
            if reason := _misses(result, self.constraints):
                self.reason[index] = reason
            else:
                self.good[index] = result
        return self.good.get(index)


def _misses(result: Result, constraints: Constraints) -> str | None:
    """Return the constraint that a simulated strategy misses, if there is one."""
    if not result.memory.fits:
        return OUT_OF_MEMORY
    if constraints.power_cap_w is not None and result.peak_power_w > constraints.power_cap_w:
        return OVER_POWER
    if constraints.step_time_s is not None and result.step_time_s > constraints.step_time_s:
        return PAST_DEADLINE
    return None


def _check_objectives(setting: Setting, names: Sequence[str]) -> None:
    cluster, problems = setting.job.cluster, []
    for name in names:
        if name not in OBJECTIVES:
            problems.append(f"objective: found '{name}', expected one of {', '.join(OBJECTIVES)}")
        elif name == "cost" and cluster.node.price_usd_per_s is None:
            problems.append(
                f"objective 'cost': node {cluster.node.name} has no price; give the node one "
                "(price: '98 USD/h') or choose another objective"
            )
        elif name == "carbon" and cluster.site.carbon_gco2e_per_j is None:
            problems.append(
                f"objective 'carbon': site {cluster.site.name} has no carbon intensity; give it "
                "one (carbon: '400 gCO2e/kWh') or choose another objective"
            )
    if problems:
        raise JobError(setting.job.source, problems)


def _ranked(options: StrategyOptions, result: Result) -> RankedStrategy:
    return RankedStrategy(options=options, label=options_in_words(options), result=result)


def _simulated(setting: Setting, options: StrategyOptions) -> RankedStrategy | None:
    """Return a hand choice and what it would do; None if it cannot be compiled."""
    try:
        return _ranked(options, predicted(setting, options).result)
    except StrategyError:
        return None


def _with_rivals(
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
        if rival and rival.options not in known and not _misses(rival.result, constraints)
    ]
    return tuple(sorted(entries, key=lambda e: (objective_of(e.result, objective), e.label)))


def _front(entries: Sequence[RankedStrategy], names: tuple[str, str]) -> tuple[RankedStrategy, ...]:
    first, second = (np.array([objective_of(e.result, n) for e in entries]) for n in names)
    return tuple(entries[index] for index in pareto_front(first, second).tolist())
