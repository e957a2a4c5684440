"""All answers of a study at once, as reports print them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Integers
from wattree.design.answers.break_even import BreakEven, break_even
from wattree.design.answers.budget import Budgets, budgets
from wattree.design.answers.elasticity import LimitingResource, bottleneck
from wattree.design.answers.pareto import Front, pareto
from wattree.design.answers.reasons import KindReason, kind_reasons
from wattree.design.answers.sensitivity import Effect, Tornado, main_effects, tornado
from wattree.design.answers.spend import CAPITAL, Spending, spend
from wattree.design.answers.sweep import AxisColumn, NoAnswer, Sweep, sweep_of
from wattree.design.answers.worth import Worth, worth
from wattree.design.points import Value
from wattree.design.results import Results
from wattree.design.study import OBJECTIVE_TOTALS

#: An axis with more values than this is a range, whose values are no alternatives to each other.
_MOST_ALTERNATIVES = 8
#: Clusters from which the next million is spent, at most; they are taken evenly from all budgets.
_MOST_BASES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueComparison:
    """Two values of an axis along another, in both ways of treating all other axes.

    Attributes:
        anew: Each with what suits it best.
        alone: All others as at the best point of the study.
    """

    anew: BreakEven
    alone: BreakEven | NoAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """The answers of a study.

    Attributes:
        sweep: Its points as columns.
        measures: Totals of the study's objectives that are known, the first ranking points.
        missing: Total of an objective → why it is known nowhere.
        best: Measure → its best point.
        ties: Measure → points that simulation does not rank below that one.
        front: Pareto-optimal points in all of (at most three) objectives.
        tornados, effects, bottlenecks: Measure → answer; around the best point of that measure.
        worths: Axis → what its values buy, with the rest chosen anew and alone.
        comparisons: Alternatives along numeric axes, those with a break-even first, then by gain.
        budgets: What is limited (capital, cost to the target, power) → best points.
        spending: What the next million buys from some of the clusters that are best per capital.
        reasons: Why the best point by the first objective wins over other kinds; empty where
            nothing but numbers is varied.
        infeasible: Reason → points, most frequent first.
    """

    sweep: Sweep
    measures: tuple[str, ...]
    missing: Mapping[str, NoAnswer]
    best: Mapping[str, int]
    ties: Mapping[str, Integers]
    front: Front | NoAnswer
    tornados: Mapping[str, Tornado | NoAnswer]
    effects: Mapping[str, tuple[Effect, ...] | NoAnswer]
    bottlenecks: Mapping[str, LimitingResource | NoAnswer]
    worths: Mapping[str, tuple[Worth | NoAnswer, Worth | NoAnswer]]
    comparisons: tuple[ValueComparison, ...]
    budgets: Mapping[str, Budgets | NoAnswer]
    spending: tuple[Spending, ...] | NoAnswer
    reasons: tuple[KindReason, ...]
    infeasible: Mapping[str, int]


def summarize(results: Results) -> StudySummary:
    """Return every answer that the points of a study give, and why others cannot be given."""
    sweep = sweep_of(results)
    wanted = [OBJECTIVE_TOTALS[name] for name in results.study.objectives]
    found = {name: sweep.best(name) for name in wanted}
    best = {name: point for name, point in found.items() if isinstance(point, int)}
    missing = {name: why for name, why in found.items() if isinstance(why, NoAnswer)}
    measures = tuple(best)
    first = wanted[0]
    base = best.get(first)
    unfit = Counter(one.reason or "no reason" for one in results.outcomes if not one.feasible)
    return StudySummary(
        sweep=sweep,
        measures=measures,
        missing=missing,
        best=best,
        ties={name: sweep.ties(name) for name in measures},
        front=pareto(sweep, measures[:3]) if measures else next(iter(missing.values())),
        tornados={name: tornado(sweep, name) for name in measures},
        effects={name: main_effects(sweep, name) for name in measures},
        bottlenecks={name: bottleneck(sweep, name) for name in measures},
        worths={
            axis.name: (worth(sweep, axis.name, first), worth(sweep, axis.name, first, base=base))
            for axis in sweep.axes
            if len(axis.levels) > 1
        },
        comparisons=_comparisons(sweep, first, base),
        budgets={
            name: budgets(sweep, first, name)
            for name in (CAPITAL, "cost_usd", "power_w", "energy_j")
            if name != first and name in sweep.measures
        },
        spending=_spending(sweep, first),
        reasons=kind_reasons(results, sweep, first),
        infeasible=dict(unfit.most_common()),
    )


def _comparisons(sweep: Sweep, measure: str, base: int | None) -> tuple[ValueComparison, ...]:
    if base is None:
        return ()
    found = []
    for axis in sweep.axes:
        others = [other for other in sweep.axes if other.name != axis.name and other.numeric]
        if not 2 <= len(axis.levels) <= _MOST_ALTERNATIVES:
            continue
        for along in others:
            if not len(along.levels) >= 2:
                continue
            for second, first in _pairs(axis):
                anew, alone = (
                    break_even(
                        sweep,
                        measure,
                        alternative=axis.name,
                        first=first,
                        second=second,
                        along=along.name,
                        base=place,
                    )
                    for place in (None, base)
                )
                if isinstance(anew, BreakEven):
                    found.append(ValueComparison(anew=anew, alone=alone))
    return tuple(sorted(found, key=_rank))


def _rank(found: ValueComparison) -> tuple[bool, float]:
    """Order by whether there is a break-even, then by the most that is gained or lost."""
    gains = np.abs(found.anew.gains[np.isfinite(found.anew.gains)])
    return not found.anew.crossings, -float(gains.max(initial=0.0))


def _pairs(axis: AxisColumn) -> list[tuple[Value, Value]]:
    """Return alternatives: every number against the lowest, every name against every other."""
    if axis.numeric:
        return [(axis.levels[0], level) for level in axis.levels[1:]]
    return list(itertools.combinations(axis.levels, 2))


def _spending(sweep: Sweep, measure: str) -> tuple[Spending, ...] | NoAnswer:
    steps = budgets(sweep, measure, CAPITAL)
    if isinstance(steps, NoAnswer):
        found = spend(sweep, measure)
        return found if isinstance(found, NoAnswer) else (found,)
    count = len(steps.steps)
    chosen = np.unique(np.linspace(0, count - 1, min(count, _MOST_BASES)).round().astype(int))
    answers = [spend(sweep, measure, base=steps.steps[place].point) for place in chosen.tolist()]
    return tuple(answer for answer in answers if isinstance(answer, Spending))
