"""The answer of a report in three cards: the choice, its cost, and its certainty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from wattree.report.html.report_view import Card
from wattree.report.plan_text import strategy_label
from wattree.report.words import count, grams, joules, likely, money, percent, with_pue
from wattree.units import counted, format_bytes, format_time

if TYPE_CHECKING:
    from wattree.search import Plan
    from wattree.search.compared import RunComparison

_PER_TOKENS: Final = 1e9


def plan_answer(plan: Plan) -> list[Card]:
    """Return the best strategy, its cost per step, and the certainty."""
    if plan.best is None:
        note = plan.explanation[0] if plan.explanation else ""
        return [Card(name="Best choice", value="none: nothing fits", note=note, bad=True)]
    figures = plan.best.result.as_json()
    note = f"of {counted(plan.feasible, 'strategy')} that fit, {plan.simulated:,} simulated"
    choice = Card(
        name=f"Best choice, by {plan.objective}", value=strategy_label(plan.best), note=note
    )
    return [choice, _cost(figures), _certainty(figures)]


def step_answer(figures: Mapping[str, Any]) -> list[Card]:
    """Return the time and memory fit of a step, its cost, and the certainty."""
    memory = figures["memory"]
    held = f"{format_bytes(memory['peak_bytes'])} of {format_bytes(memory['capacity_bytes'])}"
    if memory["fits"]:
        value = f"{format_time(figures['step_time_s'])} per {_timed(figures)}"
        name = f"{_timed(figures).capitalize()} time"
        step = Card(name=name, value=value, note=f"fits in memory: {held}")
    else:
        step = Card(name="Memory", value="does not fit", note=f"needs {held} per device", bad=True)
    return [step, _cost(figures), _certainty(figures)]


def comparison_answer(comparison: RunComparison) -> list[Card]:
    """Return the run with the highest throughput of those that fit, its cost, and the certainty."""
    runs = {run.name: run for run in comparison.runs}
    rate = "tokens_per_s"
    if any(not run.figures.get(rate) for run in comparison.runs):
        rate = "samples_per_s"
    rates = {name: run.figures.get(rate) or 0.0 for name, run in runs.items()}
    best = max(rates, key=lambda name: (runs[name].fits, rates[name]))
    others = ", ".join(f"{name} {count(rates[name])}" for name in rates if name != best)
    what = rate.removesuffix("_per_s")
    value = f"{best}: {count(rates[best])} {what}/s"
    note = f"{others} {what}/s"
    if comparison.shortages:
        note += f"; {', '.join(name for name in rates if not runs[name].fits)} does not fit"
    bad = not runs[best].fits
    first = Card(name="Highest throughput", value=value, note=note, bad=bad)
    figures = runs[best].figures
    return [first, _cost(figures), _certainty(figures)]


def _cost(figures: Mapping[str, Any]) -> Card:
    """Return money, or energy where no price is known, with what else a step takes."""
    step_s, tokens = figures["step_time_s"], figures.get("tokens_per_s")
    notes = [format_time(step_s)]
    energy_j, carbon = (figures.get("energy_j") or {}).get("total"), figures.get("carbon_gco2e")
    cost = figures.get("cost_usd")
    if cost is not None and energy_j is not None:
        notes.append(f"{joules(energy_j)} {with_pue(figures.get('pue'))}")
    if carbon is not None:
        notes.append(grams(carbon))
    if cost is not None and tokens:
        notes.append(f"{money(cost / (tokens * step_s) * _PER_TOKENS)} per billion tokens")
    value = joules(energy_j) if cost is None else money(cost)
    return Card(name="What it costs", value=f"{value} per {_timed(figures)}", note=", ".join(notes))


def _timed(figures: Mapping[str, Any]) -> str:
    return "batch" if figures.get("generation") else "step"


def _certainty(figures: Mapping[str, Any]) -> Card:
    """Return how far up the interval of the step time goes, as tables of plans do, and why."""
    step_s = figures["step_time_s"]
    span = (figures.get("interval") or {}).get("step_time_s")
    evidence = (figures.get("provenance") or {}).get("step_time_s") or {}
    kinds = sorted((evidence.get("share") or {}).items(), key=lambda item: -item[1])
    words = ", ".join(f"{100 * share:.0f} % {kind}" for kind, share in kinds if share > 0.005)
    if span is None:
        return Card(name="How sure", value="no interval is known", note=words)
    value = f"± {percent(span[1] / step_s - 1)}"
    note = f"{_timed(figures)} time{likely(tuple(span), format_time)}"
    return Card(name="How sure", value=value, note=f"{note}; {words}" if words else note)
