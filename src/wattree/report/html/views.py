"""Contents of reports as words: cards, tables and pictures. No markup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from wattree.job.offers import NOT_TRIED
from wattree.report.compare_text import compared_rows
from wattree.report.generation_text import phase_table
from wattree.report.html.report_view import Card, ReportView, TableView, view_of
from wattree.report.plan_text import ranking_rows, strategy_label, surer
from wattree.report.plots import plots_of
from wattree.report.plots.of_plan import plan_plots
from wattree.report.plots.of_runs import run_plots
from wattree.report.result_text import evidence_table, fixes_table
from wattree.report.words import (
    SHOWN_SHARE,
    count,
    grams,
    how_sure,
    joules,
    likely,
    money,
    part_in_words,
    parts_in_words,
    percent,
    time_parts,
    watts,
    with_pue,
)
from wattree.units import counted, format_bytes, format_time

if TYPE_CHECKING:
    from wattree.predict import Prediction
    from wattree.search import Plan
    from wattree.search.compared import RunComparison


_ASSUMED: Final = "Assumed, because the job does not say"


def step_cards(figures: Mapping[str, Any]) -> tuple[Card, ...]:
    """Return the cards of a step.

    Args:
        figures: Of a result or an estimate, as its `as_json` has them.
    """
    spans, memory = figures.get("interval") or {}, figures["memory"]
    tokens = figures.get("tokens_per_s")
    rate = f"{(tokens or figures['samples_per_s']):,.0f} {'tokens' if tokens else 'samples'}/s"
    headroom = 1 - memory["peak_bytes"] / memory["capacity_bytes"]
    fits = f"{percent(headroom)} free" if memory["fits"] else "does not fit"
    fits += how_sure(memory.get("fit_probability"))
    cost, carbon = figures.get("cost_usd"), figures.get("carbon_gco2e")
    each = "batch" if figures.get("generation") else "step"
    cards = [
        _card(
            f"{each.capitalize()} time",
            figures["step_time_s"],
            format_time,
            spans.get("step_time_s"),
        ),
        *_token_cards(figures.get("generation") or {}),
        Card(name="Throughput", value=rate, note=_utilization(figures)),
        Card(
            name=f"Memory, of {format_bytes(memory['capacity_bytes'])}",
            value=format_bytes(memory["peak_bytes"]),
            note=fits + likely(spans.get("memory.peak_bytes"), format_bytes),
            bad=not memory["fits"],
        ),
        _card(
            f"Energy per {each} with PUE",
            figures["energy_j"]["total"],
            joules,
            spans.get("energy_j"),
            basis="" if (pue := figures.get("pue")) is None else f"PUE {pue:.3g}",
        ),
        _card("Power before PUE", figures["average_power_w"], watts, spans.get("average_power_w")),
    ]
    if cost is None:
        note = "the node's rent is not known; a node file with `price` gives it"
        cards.append(Card(name=f"Cost per {each}", value="no price", note=note))
    else:
        cards.append(_card(f"Cost per {each}", cost, money, spans.get("cost_usd")))
    if carbon is not None:
        cards.append(_card(f"Carbon per {each}", carbon, grams, spans.get("carbon_gco2e")))
    return tuple(cards)


def step_view(prediction: Prediction) -> ReportView:
    """Return the contents of a step's report."""
    result = prediction.result
    memory, energy, each = result.memory, result.energy_j, result.timed
    pue = with_pue(result.pue)
    tables = [
        _parts(f"Where the {each} goes, on the slowest rank", time_parts(result), format_time),
        _parts("Memory of the fullest device", memory.by_category, format_bytes),
        _parts(f"Energy of the {each} by stage, {pue}", energy.by_stage, joules),
        _parts(f"Energy of the {each} by component, {pue}", energy.by_component, joules),
        view_of(evidence_table(result.provenance), "What the figures rest on"),
    ]
    if result.generation is not None:
        phases = view_of(phase_table(result.generation), "Prompts, and the tokens after")
        tables.insert(0, phases)
    if memory.fixes:
        tables.insert(0, view_of(fixes_table(memory.fixes), "What makes it fit"))
    figures = result.as_json()
    return ReportView(
        answer=step_answer(figures),
        cards=step_cards(figures),
        plots=tuple(plots_of(prediction).values()),
        tables=[table for table in tables if table.body],
        lists={_ASSUMED: result.assumed, "Warnings": prediction.warnings},
    )


def headline(plan: Plan) -> str:
    """Return the answer of a plan in one sentence."""
    if plan.best is None:
        return "Nothing fits."
    fit = f"{counted(plan.candidates, 'strategy')} screened, {plan.feasible:,} feasible"
    best = strategy_label(plan.best)
    return f"Best by {plan.objective}: {best}. {fit}, {plan.simulated:,} simulated."


def plan_view(plan: Plan) -> ReportView:
    """Return the contents of a plan's report."""
    best, ideas = plan.best, plan.ideas
    tables = []
    if ideas:
        head, body = ranking_rows([idea[0] for idea in ideas])
        first = ideas[0][0].result
        caption = f"Ranked strategies by {plan.objective}, best first; energy {with_pue(first.pue)}"
        if not first.generation:
            caption += ", power before it"
        numbers = range(2, len(head))
        if any(sure := [how_sure(each[0].result.fit_probability) for each in ideas]):
            fits = ("fits" if each[0].result.memory.fits else "does not fit" for each in ideas)
            head.append("memory suffices")
            for row, *words in zip(body, fits, sure, strict=True):
                row.append("".join(words))
        tables.append(TableView(caption=caption, head=head, body=body, numbers=numbers))
    rejected = [
        (reason, f"{number:,}")
        for reason, number in sorted(plan.rejected.items(), key=lambda item: -item[1])
    ]
    last = TableView(caption="Rejected", head=("reason", "strategies"), body=rejected, numbers=(1,))
    return ReportView(
        answer=plan_answer(plan),
        cards=() if best is None else step_cards(best.result.as_json()),
        reasons=plan.explanation,
        plots=plan_plots(ideas),
        tables=tables,
        lists={
            _ASSUMED: () if best is None else best.result.assumed,
            NOT_TRIED.capitalize(): plan.not_offered,
        },
        last=[last] if rejected else [],
    )


def comparison_view(comparison: RunComparison) -> ReportView:
    """Return the contents of a comparison's report."""
    names = [run.name for run in comparison.runs]
    body = compared_rows(comparison)
    return ReportView(
        answer=comparison_answer(comparison),
        reasons=comparison.reasons,
        plots=run_plots({run.name: run.figures for run in comparison.runs}),
        tables=[TableView(caption="Side by side", head=("figure", *names), body=body)],
        lists={"Assumed in all runs": comparison.assumed},
    )


def _card(
    name: str, value: float, shown: Any, span: tuple[float, float] | None, basis: str = ""
) -> Card:
    notes = (basis, likely(span, shown).strip(" ()"))
    return Card(name=name, value=shown(value), note="; ".join(filter(None, notes)))


def _token_cards(generation: Mapping[str, Any]) -> list[Card]:
    """Return the times to the first token and to each further one, where tokens are generated."""
    names = {"time_to_first_token_s": "First token", "time_per_output_token_s": "Output token"}
    notes = ("after all prompts", "of each sequence")
    return [
        Card(name=name, value=format_time(generation[key]), note=note)
        for (key, name), note in zip(names.items(), notes, strict=True)
        if generation.get(key) is not None
    ]


def _utilization(figures: Mapping[str, Any]) -> str:
    return f"MFU {percent(figures['mfu'])}" if figures.get("mfu") is not None else ""


def _parts(caption: str, parts: Mapping[str, float], shown: Any) -> TableView:
    """Return parts of a sum, largest first, those that round to nothing left out."""
    total = sum(parts.values())
    rows = [
        (part_in_words(name), part)
        for name, part in sorted(parts.items(), key=lambda item: -item[1])
        if total and part >= SHOWN_SHARE * total
    ]
    return TableView(
        caption=caption,
        head=("part", "amount", "share"),
        body=[(name, shown(part), percent(part / total)) for name, part in rows],
        numbers=(1, 2),
        shares=[part / total for _, part in rows],
    )


_PER_TOKENS: Final = 1e9


def plan_answer(plan: Plan) -> list[Card]:
    """Return the best strategy, its cost per step, and the certainty."""
    if plan.best is None:
        note = plan.explanation[0] if plan.explanation else ""
        return [Card(name="Best choice", value="none: nothing fits", note=note, bad=True)]
    figures = plan.best.result.as_json()
    note = f"of {counted(plan.feasible, 'strategy')} that fit, {plan.simulated:,} simulated"
    note = ". ".join(filter(None, (note, surer(plan))))
    choice = Card(
        name=f"Best choice, by {plan.objective}", value=strategy_label(plan.best), note=note
    )
    return [choice, _cost(figures), _certainty(figures)]


def step_answer(figures: Mapping[str, Any]) -> list[Card]:
    """Return the time and memory fit of a step, its cost, and the certainty."""
    memory = figures["memory"]
    held = f"{format_bytes(memory['peak_bytes'])} of {format_bytes(memory['capacity_bytes'])}"
    held += how_sure(memory.get("fit_probability"))
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
    """Return how far the interval of the step time goes on either side, and why."""
    step_s = figures["step_time_s"]
    span = (figures.get("interval") or {}).get("step_time_s")
    evidence = (figures.get("provenance") or {}).get("step_time_s") or {}
    words = parts_in_words(evidence.get("share") or {})
    if span is None:
        return Card(name="How sure", value="no interval is known", note=words)
    value = f"{percent(span[0] / step_s - 1)} to +{percent(span[1] / step_s - 1)}"
    note = f"{_timed(figures)} time{likely(tuple(span), format_time)}"
    return Card(name="How sure", value=value, note=f"{note}; {words}" if words else note)
