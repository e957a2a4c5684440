"""Sections of the page as lists of texts for the template, one function per section."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from wattree.design import Results, WorkloadOutcome
from wattree.design.answers import (
    CAPITAL,
    Budgets,
    Effect,
    LevelWorth,
    NoAnswer,
    StudySummary,
    Tornado,
    Worth,
)
from wattree.design.study import OBJECTIVE_TOTALS
from wattree.report.design.words import (
    MEASURES,
    SHORT,
    amount,
    at_point,
    bottleneck_sentence,
    break_even_sentence,
    change,
    comparison_sentence,
    elasticity_text,
    level,
    point_name,
    spending_sentence,
    ties_sentence,
    worth_sentence,
)
from wattree.report.html.report_view import Card

Section = dict[str, Any]
#: Rows of a table before the rest is counted; the page's table of all points has every one.
_MOST_ROWS = 60
#: Break-even points under each axis; the section of comparisons has the others.
_MOST_AGAINST = 6


def strategies_at(results: Results, point: int) -> str:
    """Return the strategy of every workload at a point, ≈ where it is of the closed form."""
    found = results.outcomes[point].workloads
    several = len(results.study.workloads) > 1
    return "; ".join(
        f"{one.workload}: {_strategy(one)}" if several else _strategy(one) for one in found
    )


def _strategy(one: WorkloadOutcome) -> str:
    notes = f" ({', '.join(one.notes)})" if one.notes else ""
    return f"{one.strategy}{'' if one.simulated else ' ≈'}{notes}"


def answer_cards(results: Results, summary: StudySummary) -> list[Card]:
    """Return the answer in three cards: the best choice, its cost, and its certainty."""
    first = OBJECTIVE_TOTALS[results.study.objectives[0]]
    point = summary.best.get(first)
    if point is None:
        why = summary.missing.get(first)
        note = why.reason if why is not None else "no point has this figure"
        return [Card(name="Best choice", value="none", note=note, bad=True)]
    totals = {name: float(found[point]) for name, found in summary.sweep.measures.items()}
    others = [f"{SHORT[name]} {amount(name, totals[name])}" for name in totals if name != first]
    found = results.outcomes[point].workloads
    ran = sum(one.simulated for one in found)
    how = "by simulation" if ran == len(found) else "by the closed form"
    if 0 < ran < len(found):
        how = f"{ran} of {len(found)} workloads by simulation"
    return [
        Card(
            name=f"Best choice: least {MEASURES[first]}",
            value=at_point(summary.sweep, point),
            note=strategies_at(results, point),
        ),
        Card(name="What it costs", value=amount(first, totals[first]), note=", ".join(others)),
        Card(
            name="How sure",
            value=f"predicted {how}",
            note=ties_sentence(summary, first)
            or "nothing here was measured; compare points rather than trust one figure",
        ),
    ]


def best_section(results: Results, summary: StudySummary) -> Section:
    """Return the best point of each objective, with its other totals."""
    totals = list(summary.sweep.measures)
    rows = [
        (
            f"least {MEASURES[name]}",
            point_name(point),
            *(amount(total, float(summary.sweep.measures[total][point])) for total in totals),
            at_point(summary.sweep, point),
            strategies_at(results, point),
        )
        for name, point in summary.best.items()
    ]
    head = ("Objective", "Point", *(SHORT[name] for name in totals), "Cluster", "Strategy")
    return {"head": head, "rows": rows}


def front_section(results: Results, summary: StudySummary) -> Section:
    """Return the Pareto-optimal points of the study's objectives."""
    front = summary.front
    if isinstance(front, NoAnswer):
        return {"reason": front.reason}
    names = " and ".join(SHORT[name] for name in front.objectives)
    shown = front.points[:_MOST_ROWS].tolist()
    more = f" The first {len(shown)} are listed." if len(shown) < len(front.points) else ""
    lacking = f" {front.unknown} points lack one of these and were left out." * bool(front.unknown)
    rows = [
        (
            point_name(point),
            *(
                amount(name, float(summary.sweep.measures[name][point]))
                for name in front.objectives
            ),
            at_point(summary.sweep, point),
            strategies_at(results, point),
            ", ".join(point_name(other) for other in front.equals.get(point, ())[:5]) or "–",
        )
        for point in shown
    ]
    measured = (SHORT[name] for name in front.objectives)
    return {
        "text": f"{len(front.points)} of {int(summary.sweep.feasible.sum())} points are beaten by "
        f"no other in {names} together.{more}{lacking}",
        "head": ("Point", *measured, "Cluster", "Strategy", "As good"),
        "rows": rows,
        "caption": f"The Pareto front of {names}",
    }


def worth_sections(results: Results, summary: StudySummary) -> list[Section]:
    """Return the benefit of the values of each axis, in the order of the study."""
    return [
        _worth_section(results, summary, name, anew, alone)
        for name, (anew, alone) in summary.worths.items()
    ]


def _change(summary: StudySummary, total: str, one: LevelWorth) -> str:
    """Return how a total changes at a value; where it has none, why."""
    value = 0.0 if one.point is None else float(summary.sweep.measures[total][one.point])
    return change(one.change[total]) if math.isfinite(value) else amount(total, value)


def _worth_section(
    results: Results,
    summary: StudySummary,
    name: str,
    anew: Worth | NoAnswer,
    alone: Worth | NoAnswer,
) -> Section:
    axis = next(axis for axis in summary.sweep.axes if axis.name == name)
    totals = list(summary.sweep.measures)
    section: Section = {
        "title": axis.label,
        "plot": f"{axis.label}: the least {MEASURES[_first(results)]} at each value",
        "anew": worth_sentence(summary.sweep, anew),
        "alone": worth_sentence(summary.sweep, alone),
        "against": [
            (comparison_sentence(summary.sweep, one), break_even_sentence(summary.sweep, one.anew))
            for one in summary.comparisons
            if one.anew.along == name and one.anew.crossings
        ][:_MOST_AGAINST],
    }
    if isinstance(anew, NoAnswer):
        return section
    alike = {} if isinstance(alone, NoAnswer) else {one.value: one for one in alone.levels}
    rows = []
    for one in anew.levels:
        same = alike.get(one.value)
        rows.append(
            (
                level(axis, one.value),
                *(_change(summary, total, one) for total in totals),
                change(same.change[anew.measure]) if same else "–",
                f"{one.feasible} of {one.points}",
                f"{point_name(one.point)} {strategies_at(results, one.point)}"
                if one.point is not None
                else one.lacking,
            )
        )
    head = (axis.label, *(SHORT[total] for total in totals))
    reference = level(axis, anew.reference)
    return section | {
        "head": (*head, f"{SHORT[anew.measure]}, alone", "Points that fit", "Best point"),
        "rows": rows,
        "caption": f"Changes against {reference}, at the point with least {MEASURES[anew.measure]} "
        "(of points alike, with less capital)",
    }


def comparison_rows(summary: StudySummary) -> list[tuple[str, str, str]]:
    """Return the comparisons of pairs of alternatives, those with a break-even first."""
    return [
        (
            comparison_sentence(summary.sweep, one),
            break_even_sentence(summary.sweep, one.anew),
            break_even_sentence(summary.sweep, one.alone),
        )
        for one in summary.comparisons[:_MOST_ROWS]
    ]


def matter_sections(summary: StudySummary) -> list[Section]:
    """Return how much each axis matters, for each measure."""
    return [_matter(summary, name) for name in summary.measures]


def _matter(summary: StudySummary, name: str) -> Section:
    lines = [f"What limits it: {bottleneck_sentence(summary.sweep, summary.bottlenecks[name])}"]
    tornado, effects = summary.tornados[name], summary.effects[name]
    found: dict[str, Effect] = {}
    if isinstance(effects, NoAnswer):
        lines.append(f"Main effects cannot be determined: {effects.reason}.")
    else:
        found = {effect.axis: effect for effect in effects}
    rows = [
        (
            axis.label,
            f"{100 * found[axis.name].share:.0f} %" if axis.name in found else "–",
            _span(tornado, axis.name),
            _elasticity(summary, name, axis.name),
            _fitting(found.get(axis.name)),
        )
        for axis in summary.sweep.axes
        if len(axis.levels) > 1
    ]
    rows.sort(key=lambda row: -float(row[1].split()[0]) if row[1] != "–" else 1.0)
    return {
        "title": MEASURES[name].capitalize(),
        "lines": lines,
        "head": (
            "Axis",
            "Main effect (share of variance)",
            "Alone, from the best point",
            "Elasticity there",
            "Points that fit, by its values",
        ),
        "rows": rows,
        "caption": f"How much each axis matters for {MEASURES[name]}",
    }


def _span(tornado: Tornado | NoAnswer, axis: str) -> str:
    if isinstance(tornado, NoAnswer):
        return f"cannot be determined: {tornado.reason}"
    bar = next((bar for bar in tornado.bars if bar.axis == axis), None)
    if bar is None:
        return f"cannot be determined: {tornado.without[axis]}"
    fits = f"; nothing fits at {len(bar.infeasible)} of its values" if bar.infeasible else ""
    return f"{bar.lowest:.2f} × to {bar.highest:.2f} ×{fits}"


def _elasticity(summary: StudySummary, measure: str, axis: str) -> str:
    found = summary.bottlenecks[measure]
    if isinstance(found, NoAnswer):
        return "–"
    one = next((one for one in found.ranked if one.axis == axis), None)
    return elasticity_text(one) if one else found.without.get(axis, "–")


def _fitting(effect: Effect | None) -> str:
    if effect is None:
        return "–"
    low, high = effect.feasible
    if low == high:
        return "all" if low == 1 else f"{100 * low:.0f} %"
    return f"{100 * low:.0f} % to {100 * high:.0f} %"


def money_sections(results: Results, summary: StudySummary) -> list[Section]:
    """Return the best cluster per budget, and what the next million buys."""
    first = MEASURES[_first(results)]
    sections = [
        _budget_section(results, summary, found, f"The least {first} by {MEASURES[name]}")
        for name, found in summary.budgets.items()
    ]
    if isinstance(summary.spending, NoAnswer):
        lines = [f"Cannot be determined: {summary.spending.reason}."]
        return [*sections, {"title": "The next million", "lines": lines}]
    rows = [
        (
            point_name(one.base),
            amount(CAPITAL, float(summary.sweep.measures[CAPITAL][one.base])),
            at_point(summary.sweep, one.base),
            spending_sentence(summary.sweep, one),
        )
        for one in summary.spending
    ]
    spent = {
        "title": "The next million",
        "lines": [
            "From some of the clusters that are the best for their price, USD 1 million more: the "
            "best step of one axis, then the best cluster that the sum reaches."
        ],
        "head": ("From", "Price", "Cluster", "What a million more buys"),
        "rows": rows,
        "caption": f"Spending, for least {first}",
    }
    return [*sections, spent]


def _budget_section(
    results: Results, summary: StudySummary, found: Budgets | NoAnswer, title: str
) -> Section:
    if isinstance(found, NoAnswer):
        return {"title": title, "lines": [f"Cannot be determined: {found.reason}."]}
    steps = found.steps[:_MOST_ROWS]
    rows = [
        (
            f"from {amount(found.budget, step.spent)}",
            amount(found.measure, step.value),
            point_name(step.point),
            at_point(summary.sweep, step.point),
            strategies_at(results, step.point),
        )
        for step in steps
    ]
    count = len(found.steps)
    more = f" The first {len(steps)} of {count} steps are listed." if len(steps) < count else ""
    return {
        "title": title,
        "lines": [f"Below {amount(found.budget, steps[0].spent)} nothing fits.{more}"],
        "head": (MEASURES[found.budget], MEASURES[found.measure], "Point", "Cluster", "Strategy"),
        "rows": rows,
        "caption": title,
    }


def infeasible_rows(summary: StudySummary) -> list[tuple[str, str]]:
    """Return reasons why points do not fit, with their number; the rarest are counted together."""
    reasons = Counter(summary.infeasible)
    rows = [(reason, f"{count:,}") for reason, count in reasons.most_common(_MOST_ROWS)]
    rest = reasons.total() - sum(count for _, count in reasons.most_common(_MOST_ROWS))
    return [*rows, ("other reasons", f"{rest:,}")] if rest else rows


def _first(results: Results) -> str:
    return OBJECTIVE_TOTALS[results.study.objectives[0]]
