"""Answers of a study in words: figures with their units, one sentence for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from wattree.arrays import Floats
from wattree.design.answers import (
    ALIKE,
    CAPITAL,
    AxisColumn,
    BreakEven,
    Crossing,
    Elasticity,
    KindReason,
    LevelWorth,
    LimitingResource,
    NoAnswer,
    Spending,
    SpendingStep,
    StudySummary,
    Sweep,
    Value,
    ValueComparison,
    Worth,
    is_ranked,
)
from wattree.report.words import NOT_APPLICABLE, money, part_in_words, quantity, significant
from wattree.units import JOULES_PER_KWH, counted, format_time

#: Measure → what people call it.
MEASURES = {
    "time_s": "time to target",
    "energy_j": "energy to target",
    "cost_usd": "cost to target",
    "carbon_gco2e": "carbon to target",
    "power_w": "peak power with PUE",
    "capital_usd": "price of the cluster",
}
#: Measure → the same in one word, for heads of tables and after "less".
SHORT = {
    "time_s": "time",
    "energy_j": "energy",
    "cost_usd": "cost",
    "carbon_gco2e": "carbon",
    "power_w": "power",
    "capital_usd": "capital",
}
#: Changes below this share are called none. Simulated and closed-form times differ by more.
_SAME = 0.0005
#: Points alike that are named; more are counted.
_MOST_TIES = 5
#: Share of all differences of two steps from which a part of them is worth a word.
_SHOWN_SHARE = 0.05


def amount(measure: str, value: float) -> str:
    """Return a total with a unit that suits it."""
    if not math.isfinite(value):
        return "no price" if measure.endswith("_usd") else NOT_APPLICABLE
    return _AMOUNTS[measure](value)


def _dollars(value: float) -> str:
    return f"${significant(value / 1e6)} million" if abs(value) >= 1e6 else money(value)


def _carbon(value: float) -> str:
    return f"{significant(value / 1e6)} tCO2e" if abs(value) >= 1e6 else quantity(value, "gCO2e")


_AMOUNTS: Mapping[str, Callable[[float], str]] = {
    "time_s": format_time,
    "energy_j": lambda value: quantity(value / JOULES_PER_KWH * 1e3, "Wh"),
    "cost_usd": _dollars,
    "carbon_gco2e": _carbon,
    "power_w": lambda value: quantity(value, "W"),
    "capital_usd": _dollars,
}


def number(value: float) -> str:
    """Return a number with at most four digits that count."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return f"{float(f'{value:.4g}'):,.10g}"
    return f"{value:.4g}"


def level(axis: AxisColumn, value: Value) -> str:
    """Return a value of an axis in the study's unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if axis.scales:
        return f"× {number(value)}"
    return f"{number(value / axis.factor)}{f' {axis.unit}' if axis.unit else ''}"


def at_point(sweep: Sweep, point: int) -> str:
    """Return the values of all axes that vary at a point, as one line."""
    named = [
        f"{axis.label} {level(axis, axis.value(point))}"
        for axis in sweep.axes
        if len(axis.levels) > 1
    ]
    return ", ".join(named) or "the base cluster"


def change(share: float) -> str:
    """Return a change as percent with its sign."""
    if not math.isfinite(share):
        return NOT_APPLICABLE
    if abs(share) < _SAME:
        return "±0 %"
    return f"{100 * share:+.1f} %".replace("-", "−")


def worth_sentence(sweep: Sweep, worth: Worth | NoAnswer) -> str:
    """Return the benefit of the best value of an axis, and the point from which it pays off."""
    if isinstance(worth, NoAnswer):
        return f"Cannot be determined: {worth.reason}."
    axis = _axis(sweep, worth.axis)
    fitting = [one for one in worth.levels if one.point is not None]
    best, gains = _best_level(fitting, (worth.measure, *sweep.objectives))
    gain = best.change[worth.measure]
    reference = level(axis, worth.reference)
    if not gains:
        if axis.is_price and (costs := _changes(fitting[-1], least=_SAME)):  # no one chooses it
            return f"{level(axis, fitting[-1].value)} against {reference}: {_listed(costs)}."
        lacks = dict.fromkeys(one.lacking for one in worth.levels if one.lacking)
        others = f"{' or '.join(lacks)} at other values, none" if lacks else "no other value"
        others = "no other value" if len(fitting) > 1 else others
        return _sentence(f"{others} is better than {reference}.")
    also = _changes(best, but=worth.measure)
    sentence = (
        f"{level(axis, best.value)}: {_changed(worth.measure, gain)} "
        f"{'as' if abs(gain) < _SAME else 'than'} at {reference}{_unranked(worth.measure, gain)}"
        + (f", with {_listed(also)}" if also else "")
    )
    return f"{sentence}. {_from_where(sweep, axis, worth)}".strip()


def _changes(one: LevelWorth, *, but: str = "", least: float = 0.0) -> list[str]:
    """Return the known changes of all measures but one, of at least so much, in words."""
    known = {name: share for name, share in one.change.items() if math.isfinite(share)}
    return [
        _changed(name, share)
        for name, share in known.items()
        if name != but and abs(share) >= least
    ]


def _best_level(levels: Sequence[LevelWorth], names: Sequence[str]) -> tuple[LevelWorth, bool]:
    """Return the best of values by the first measure in which they differ, and whether any gains.

    A change of less than `_SAME` is none; of all measures but the first, one that ranks nothing.
    """
    for name in names:
        least = min((one.change.get(name, math.inf) for one in levels), default=math.inf)
        if math.isfinite(least):
            levels = [one for one in levels if one.change[name] <= least + _SAME]
        if least <= -_SAME and (name == names[0] or is_ranked(name, least)):
            return min(levels, key=lambda one: one.change[name]), True
    return levels[0], False


def _from_where(sweep: Sweep, axis: AxisColumn, worth: Worth) -> str:
    found = worth.break_even
    if isinstance(found, NoAnswer):
        return ""
    reference = level(axis, worth.reference)
    if not found.crossings:
        gaining = np.flatnonzero(found.gains > _SAME)
        if found.first_wins_at_start is False:
            return ""
        if not len(gaining) or len(gaining) == len(found.gains):
            return f"Every other value is better than {reference}." if len(gaining) else ""
        if gaining[0] == 0:
            return f"No other value is worse than {reference}."
        last, first = (level(axis, found.values[gaining[0] - back]) for back in (1, 0))
        return f"As good as {reference} up to {last}, better from {first} on."
    return f"Worth it {_crossed(sweep, found, first='', second='no longer')}."


def break_even_sentence(sweep: Sweep, found: BreakEven | NoAnswer) -> str:
    """Return which of two alternatives is better, and where that changes."""
    if isinstance(found, NoAnswer):
        return f"Cannot be determined: {found.reason}."
    axis, along = _axis(sweep, found.alternative), _axis(sweep, found.along)
    first, second = level(axis, found.first), level(axis, found.second)
    if found.first_wins_at_start is None:
        if not (np.abs(found.gains) >= _SAME).any():
            return "The two are equal throughout."
        return f"The two are within {100 * ALIKE:.0f} % throughout, too close to rank."
    if not found.crossings:
        winner = first if found.first_wins_at_start else second
        ends = f"{level(along, found.values[0])} to {level(along, found.values[-1])}"
        is_close = [not is_ranked(found.measure, gain) for gain in found.gains]
        ties = " or as good" if any(is_close) or (np.abs(found.gains) < _SAME).any() else ""
        return f"{winner} is better{ties} throughout, from {ends}{_gained(sweep, found)}."
    sentence = _crossed(sweep, found, first=first, second=second)
    return f"{sentence}{_gained(sweep, found)}."


def _gained(sweep: Sweep, found: BreakEven) -> str:
    """Return how much the first alternative gains at the end of the axis."""
    gain = float(found.gains[-1])
    if not math.isfinite(gain):
        return ""
    axis, along = _axis(sweep, found.alternative), _axis(sweep, found.along)
    end, first = level(along, found.values[-1]), level(axis, found.first)
    return (
        f"; at {end} {first} has {_changed(found.measure, -gain)}{_unranked(found.measure, gain)}"
    )


def comparison_sentence(sweep: Sweep, found: ValueComparison) -> str:
    """Return what is compared in one line."""
    axis, along = _axis(sweep, found.anew.alternative), _axis(sweep, found.anew.along)
    first, second = level(axis, found.anew.first), level(axis, found.anew.second)
    return f"{axis.label}: {first} against {second}, along {along.label}"


def _crossed(sweep: Sweep, found: BreakEven, *, first: str, second: str) -> str:
    """Return `A from 250 GB/s (between 200 GB/s and 400 GB/s), then B from …`."""
    axis, parts = _axis(sweep, found.along), []
    for one in found.crossings:
        winner = first if one.first_wins_after else second
        bounds = f"between {level(axis, one.bounds[0])} and {level(axis, one.bounds[1])}"
        where = f"from {bounds}" if one.at is None else f"from {level(axis, one.at)} ({bounds})"
        lost = _left_out(sweep, found, one) if one.at is None else ""
        parts.append(f"{winner} {where}".strip() + lost)
    return ", then ".join(parts)


def _left_out(sweep: Sweep, found: BreakEven, one: Crossing) -> str:
    """Return which of the two fits on one side of a change alone, and why not on the other."""
    axis, other = _axis(sweep, found.along), _axis(sweep, found.alternative)
    is_lost = math.isnan(float(found.gains[found.values.tolist().index(one.bounds[1])]))
    at = one.bounds[1 if is_lost else 0]
    name = found.first if is_lost is not one.first_wins_after else found.second
    is_own = axis.name == other.name  # each value of an axis against one of them
    reason = sweep.reasons_at((axis, at), *([] if is_own else [(other, name)]))
    what = level(axis, at) if is_own else f"{level(other, name)} at {level(axis, at)}"
    return f": nothing fits with {what}" + (f" ({reason})" if reason else "")


def bottleneck_sentence(sweep: Sweep, found: LimitingResource | NoAnswer) -> str:
    """Return which resource limits a measure."""
    if isinstance(found, NoAnswer):
        return f"Cannot be determined: {found.reason}."
    needed = [_axis(sweep, one.axis).label for one in found.ranked if one.needed]
    edge = f" With the next smaller {' or '.join(needed)} nothing fits." if needed else ""
    if found.axis is None or found.slope is None:
        if not found.ranked:
            return (
                "Cannot be determined: no point differs from the best one in a single numeric axis."
            )
        return f"At the best point, no resource limits {MEASURES[found.measure]}.{edge}"
    label, first = _axis(sweep, found.axis).label, found.ranked[0]
    # At the best point a slope is known below it: what holds there says nothing of more.
    more, slope = ("more", found.slope) if first.is_for_more else ("less", -(first.below or 0.0))
    capped = "; with the next larger value nothing fits" if first.capped else ""
    return (
        f"{label}: 1 % {more} of it changes {MEASURES[found.measure]} by about "
        f"{slope:+.2g} %{capped}.{edge}"
    ).replace("-", "−")


def kind_sentence(sweep: Sweep, one: KindReason) -> str:
    """Return why the best kind is better than another."""
    axis = _axis(sweep, one.axis)
    least = _SHOWN_SHARE * sum(abs(value) for value in one.saved.values())
    parts = [
        f"{amount(one.measure, abs(value))} {'less' if value > 0 else 'more'} {part_in_words(part)}"
        for part, value in one.saved.items()
        if abs(value) > least
    ]
    others = {name: share for name, share in one.change.items() if name != one.measure}
    also = _listed([_changed(name, share) for name, share in others.items()] or [""])
    gain = f"{_changed(one.measure, -one.share)}{_unranked(one.measure, one.share)}"
    why = f": {_listed(parts)} to the target" if parts else f", with {also}" if also else ""
    if abs(one.share) < _SAME:
        gain = _listed([_changed(name, share) for name, share in one.change.items()])
        why = why if parts else ""
    return f"{level(axis, one.winner)} against {level(axis, one.other)}: {gain}{why}."


def ties_sentence(summary: StudySummary, measure: str) -> str:
    """Return the points too close to the best one to rank below it; empty if there are none."""
    ties = summary.ties[measure]
    if not len(ties):
        return ""
    count = len(ties)
    others = counted(count, "other point")
    if count <= _MOST_TIES:
        others += f" ({', '.join(point_name(int(point)) for point in ties)})"
    close = "as good" if measure == CAPITAL else f"within {100 * ALIKE:.0f} %, too close to rank"
    prices = summary.sweep.measures.get(CAPITAL)
    if prices is None:
        return f"{others} {close}."
    alike = [summary.best[measure], *ties.tolist()]
    cheapest = _cheapest(prices, alike)
    if cheapest == alike[0]:
        return f"{others} {close}; {'none takes' if count > 1 else 'it takes no'} less capital."
    price = amount(CAPITAL, float(prices[cheapest]))
    return f"{others} {close}; {point_name(cheapest)} has the least capital, {price}."


def named_ties(sweep: Sweep, measure: str, best: int) -> tuple[int, ...]:
    """Return the points that `ties_sentence` names: those alike, if few, and the cheapest."""
    ties = sweep.ties(measure).tolist()
    found = tuple(ties) if len(ties) <= _MOST_TIES else ()
    prices = sweep.measures.get(CAPITAL)
    return found if prices is None else (*found, _cheapest(prices, [best, *ties]))


def _cheapest(prices: Floats, points: Sequence[int]) -> int:
    return min(points, key=lambda point: float(np.nan_to_num(prices[point], nan=np.inf)))


def point_name(point: int) -> str:
    """Return the label of a point: its index among the finished ones."""
    return f"#{point + 1}"


def _unranked(measure: str, share: float) -> str:
    """Return what is to be said of a difference that may be none."""
    is_clear = is_ranked(measure, share) or abs(share) < _SAME
    return "" if is_clear else " (too little to rank them)"


def elasticity_text(one: Elasticity) -> str:
    """Return both slopes of an elasticity."""
    parts = [
        f"{slope:+.2f} {side} it".replace("-", "−")
        for side, slope in (("below", one.below), ("above", one.above))
        if slope is not None
    ]
    return ", ".join(parts) or "no neighbor fits"


def step_text(sweep: Sweep, step: SpendingStep) -> str:
    """Return one step of spending."""
    axis = _axis(sweep, step.axis)
    extra = amount("capital_usd", abs(step.extra_usd))
    costs = f"for {extra} more" if step.extra_usd > 0 else f"saving {extra}"
    return f"{axis.label} {level(axis, step.value)} {costs} ({change(-step.gain)})"


def spending_sentence(sweep: Sweep, found: Spending) -> str:
    """Return the benefit of a sum spent on one cluster."""
    what, more = MEASURES[found.measure], []
    if found.free:
        more.append(f"Without paying more: {step_text(sweep, found.free[0])}.")
    if found.steps:
        best = found.steps[0]
        if best.affordable:
            more.append(f"One axis alone: {step_text(sweep, best)}.")
        else:
            more.append(
                f"No step of one axis costs so little; the best per dollar is "
                f"{step_text(sweep, best)}, which is {change(-best.gain_per_sum)} for this sum."
            )
    elif not found.free:
        more.append(f"No single axis reduces {what} from here.")
    if found.gain > 0:
        more.append(
            f"With every axis free, {change(-found.gain)}: {at_point(sweep, found.anywhere)}."
        )
    return " ".join(more)


def _changed(measure: str, share: float) -> str:
    noun = SHORT[measure]
    if abs(share) < _SAME:
        return f"the same {noun}"
    if share >= 1:
        return f"{number(float(f'{1 + share:.3g}'))} × the {noun}"
    return f"{100 * abs(share):.1f} % {'less' if share < 0 else 'more'} {noun}"


def _sentence(text: str) -> str:
    """Return text with its first letter capitalized, units unchanged."""
    return text[:1].upper() + text[1:]


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _axis(sweep: Sweep, name: str) -> AxisColumn:
    found = sweep.axis(name)
    assert isinstance(found, AxisColumn), name
    return found
