"""A plan as text: the ranking, the reason, and rejected candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wattree.job.offers import NOT_TRIED
from wattree.report.energy_text import run_facts
from wattree.report.generation_text import energy_column, token_columns
from wattree.report.parts import bullets, facts_table, headed_table, plain_table, section
from wattree.report.result_text import summary_rows
from wattree.report.words import (
    NOT_APPLICABLE,
    changed_function,
    column,
    how_sure,
    job_in_words,
    percent,
    significant,
    time_parts,
    with_pue,
)
from wattree.units import counted, format_bytes, format_time

if TYPE_CHECKING:
    # Only for the types: the search loads the whole stack of predictions.
    from wattree.search.plan_result import Plan, RankedStrategy
    from wattree.trace import Result, RunBill


#: Variants that a row names; the rest is counted.
_MOST_VARIANTS = 2


#: Strategies that the short answer names behind the best one; with the figures of a run.
_FEW, _FEWER = 3, 2
#: Of the short answer: assumptions, the software first, and kinds of strategies left out.
_ASSUMPTIONS, _LEFT_OUT = 2, 3
#: Parts of the step below this share are not in the short answer.
_LEAST_PART = 0.01
#: Rows of a run that the short answer leaves to `--full`, and of a step where a run has them.
_DETAILS = frozenset({"Goodput", "Checkpoints", "Assumed", "Not counted"})
_OF_RUN = frozenset({"Energy", "Power", "Carbon"})


def show_plan(
    plan: Plan,
    console: Console,
    *,
    full: bool = True,
    run: RunBill | None = None,
    most: Mapping[str, float] | None = None,
) -> None:
    """Print the ranked strategies, why the first one is best, and rejected candidates.

    Args:
        full: All of it; otherwise what fits on one screen.
        run: What a whole run takes with the best; None where no one asked.
        most: Objective → the most of it that the run may have; None for no limits.
    """
    _headline(plan, console)
    facts = [] if run is None else run_facts(run, most or {})
    if not full and plan.best is not None:
        _short(plan, plan.best, facts, console)
        return
    if plan.ranked:
        console.print(ranking([idea[0] for idea in plan.ideas], [idea[1:] for idea in plan.ideas]))
        _legend(plan.ranked, console)
    _run(facts, console)
    _more_rankings(plan, console)
    _mix(plan, console)
    title = "Why the first one wins" if plan.best is not None else "What would help"
    section(title, plan.explanation, console)
    if plan.best is not None and plan.best.result.assumed:
        section("Assumed", bullets(plan.best.result.assumed), console)
    _rejected(plan, console)


def _run(facts: Sequence[tuple[str, str]], console: Console) -> None:
    if facts:
        section("The run", facts_table(facts), console)


def _more_rankings(plan: Plan, console: Console) -> None:
    """Print the best strategy that changes no function, and the front of two objectives."""
    if plan.exact is not None:
        console.print(Text("\nBest that trains the model itself", style="bold"))
        console.print(ranking([plan.exact]))
    if plan.pareto:
        console.print(Text("\nBest compromises (no strategy is better in both)", style="bold"))
        console.print(ranking(plan.pareto))


def _mix(plan: Plan, console: Console) -> None:
    """Print the mix that is surely better, if there is one."""
    if plan.mixed is None:
        return
    result, likely = plan.mixed.result, plan.mixed.probability
    assert likely is not None
    figures = (
        f"{format_time(result.step_time_s)} a step; better by {plan.objective} with "
        f"{100 * likely:.0f} % probability, "
        f"{format_bytes(result.memory.peak_bytes)}; --json has its tree (mixed.strategy)"
    )
    section("A mix that is better", (plan.mixed.label, figures), console)


def _short(
    plan: Plan, best: RankedStrategy, facts: Sequence[tuple[str, str]], console: Console
) -> None:
    """Print the best strategy, its figures, the next ones, and what decides between them."""
    console.print(Text(strategy_label(best), style="bold"))
    step = [row for row in summary_rows(best.result) if not facts or row[0] not in _OF_RUN]
    console.print(facts_table(step))
    if (sure := surer(plan)) is not None:
        console.print(Text(sure, style="bold"))
    if facts:
        (_, target), *rest = facts
        shown = facts_table(fact for fact in rest if fact[0] not in _DETAILS)
        section(f"The run: {target}", shown, console)
    if others := plan.ideas[1 : 1 + (_FEWER if facts else _FEW)]:
        section("Next", _next(others, best, plan.objective), console)
    section("Why", _why(plan, best), console)
    show_assumed(best.result, console, more="with --full")
    _more_rankings(plan, console)
    _mix(plan, console)
    console.print()
    if plan.not_offered:
        console.print(f"{NOT_TRIED.capitalize()}: {_left_out(plan)}.", markup=False)
    table = f"{counted(len(plan.ideas), 'strategy')} as a table"
    words = f"--full adds {table}, all comparisons, what was rejected."
    console.print(Text(words, style="dim"))


def _left_out(plan: Plan) -> str:
    """Return what the software of a plan lacks, without exceptions."""
    named = []
    for each in plan.not_offered[:_LEFT_OUT]:
        what, _, exceptions = each.partition(", except")
        named.append(f"some with {what}" if exceptions else what)
    if (more := len(plan.not_offered) - _LEFT_OUT) > 0:
        named.append(f"{more} more")
    return f"{'; '.join(named)} (--any-software)"


def _why(plan: Plan, best: RankedStrategy) -> list[str]:
    """Return where the step goes, and the first sentence that compares it with others.

    What stands in other lines of the short answer is left out: the figures of the best strategy,
    and the settings of the second.
    """
    whole = best.result.step_time_s
    parts = sorted(time_parts(best.result).items(), key=lambda part: -part[1])
    shares = [f"{name} {percent(s / whole)}" for name, s in parts if s >= _LEAST_PART * whole]
    sentences = [each for each in plan.explanation if not each.startswith(f"{best.label}: ")]
    if len(plan.ideas) > 1:
        known = f"the runner-up ({plan.ideas[1][0].label})"
        sentences = [each.replace(known, "the runner-up") for each in sentences]
    return [f"Of the {best.result.timed}: {', '.join(shares)}.", *sentences[:1]]


def surer(plan: Plan) -> str | None:
    """Return a line on the best strategy that surely fits, if the first one may not."""
    if plan.best is None or plan.sure is None:
        return None
    from wattree.search.objective import share_behind

    rank = 1 + next(n for n, idea in enumerate(plan.ideas) if idea[0] is plan.sure)
    more = share_behind(plan.sure.result, plan.best.result, plan.objective)
    probability = plan.sure.result.fit_probability
    likely = "" if probability is None else f", {100 * probability:.0f} % sure"
    return (
        f"Sure to fit: {strategy_label(plan.sure)}: {100 * more:+.1f} % {plan.objective}{likely} "
        f"(--rank {rank})"
    )


def show_assumed(result: Result, console: Console, *, more: str, most: int = _ASSUMPTIONS) -> None:
    """Print the first assumptions of a result, and where there are more."""
    shown, rest = result.assumed[:most], result.assumed[most:]
    if shown:
        title = f"Assumed ({len(rest)} more {more})" if rest else "Assumed"
        section(title, bullets(shown), console)


def _next(
    others: Sequence[Sequence[RankedStrategy]], best: RankedStrategy, objective: str
) -> Table:
    """Return one row for each of the next strategies, and how far behind the best it is."""
    table = plain_table()
    table.add_column(justify="right", no_wrap=True, style="dim")
    table.add_column(ratio=1)
    sure = [how_sure(entry.result.fit_probability).removeprefix(", ") for entry, *_ in others]
    for _ in range(4 if any(sure) else 3):
        table.add_column(justify="right", no_wrap=True)
    from wattree.search.objective import share_behind

    for rank, ((entry, *_), verdict) in enumerate(zip(others, sure, strict=True), start=2):
        result = entry.result
        behind = share_behind(result, best.result, objective)
        held = format_bytes(result.memory.peak_bytes)
        name = strategy_label(entry, (best, *(other for other, *_ in others)))
        step = format_time(result.step_time_s)
        verdicts = [verdict] if any(sure) else []
        table.add_row(str(rank), name, step, f"{100 * behind:+.1f} %", held, *verdicts)
    return table


def show_software(
    plans: Mapping[str, Plan],
    reasons: Mapping[str, str],
    console: Console,
    *,
    differences: Sequence[str] = (),
) -> None:
    """Print the best strategy of each software family, and why others have none.

    Args:
        plans: Family → its plan, the best first.
        reasons: Family → why nothing fits.
        differences: Sentences that compare the others with the first.
    """
    named = [
        replace(plan.best, label=f"{name}: {plan.best.label}")
        for name, plan in plans.items()
        if plan.best is not None
    ]
    if named:
        console.print(ranking(named))
        _legend(named, console)
        section("Why", differences, console)
    for name, reason in reasons.items():
        console.print(Text(f"\n{name}: {reason}"))


def ranking(
    entries: Sequence[RankedStrategy], variants: Sequence[Sequence[RankedStrategy]] = ()
) -> Table:
    """Return one row per strategy; each column has one unit, named in its head.

    Args:
        variants: Of each, those that differ from it in details alone.
    """
    columns = _columns(entries)
    table = headed_table()
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("strategy", ratio=1)
    for name, unit, _ in columns:
        table.add_column(f"{name}\n{unit}", justify="right", no_wrap=True)
    for index, entry in enumerate(entries):
        style = "bold" if index == 0 else None
        label = Text(strategy_label(entry, entries))
        if variants and variants[index]:
            label.append(f"\nor {_variants(entry, variants[index])}", style="dim")
        table.add_row(
            str(index + 1), label, *(texts[index] for _, _, texts in columns), style=style
        )
    return table


def ranking_rows(entries: Sequence[RankedStrategy]) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of the ranking without variants."""
    columns = _columns(entries)
    head = ["#", "strategy", *(f"{name} [{unit}]" for name, unit, _ in columns)]
    rows = [
        [str(index + 1), strategy_label(entry, entries), *(texts[index] for _, _, texts in columns)]
        for index, entry in enumerate(entries)
    ]
    return head, rows


def _columns(entries: Sequence[RankedStrategy]) -> list[tuple[str, str, list[str]]]:
    """Return name, unit and cells of each figure of strategies."""
    results = [entry.result for entry in entries]
    of_tokens = token_columns(results)
    power = ("power", *column([r.average_power_w for r in results], "W"))
    columns = [
        (results[0].timed, *column([r.step_time_s for r in results], "s")),
        (_counted(entries[0]), *column([_rate(entry) for entry in entries], "/s")),
        *(of_tokens or [("MFU", "%", [f"{100 * r.mfu:.1f}" for r in results])]),
        ("memory", *column([r.memory.peak_bytes for r in results], "B", binary=True)),
        *(() if of_tokens else (power,)),
        ("energy", *energy_column(results)),
        ("cost", *_cents([r.cost_usd for r in results])),
    ]
    if any(r.interval for r in results):
        columns.insert(1, ("80 %", "+%", [_sureness(r) for r in results]))
    return columns


def _variants(entry: RankedStrategy, others: Sequence[RankedStrategy]) -> str:
    """Return the settings that the closest variants change, and how far behind they are."""
    found, own = [], entry.label.split(", ")
    for other in others[:_MOST_VARIANTS]:
        parts = other.label.split(", ")
        words = [part for part in parts if part not in own]
        words = words or [f"no {part}" for part in own if part not in parts]
        behind = other.result.step_time_s / entry.result.step_time_s - 1.0
        found.append(f"{' and '.join(words)} ({100 * behind:+.1f}%)")
    more = len(others) - len(found)
    return "; ".join(found) + (f"; {more} more" if more else "")


def _sureness(result: Result) -> str:
    """Return how far up the interval of a step time goes, in percent."""
    span = result.interval.get("step_time_s")
    if span is None or result.step_time_s <= 0:
        return NOT_APPLICABLE
    return f"{100 * (span[1] / result.step_time_s - 1):.0f}"


def strategy_label(entry: RankedStrategy, among: Sequence[RankedStrategy] = ()) -> str:
    """Return a strategy in words, marked where it trains another function than the job's model.

    Args:
        among: With these it is shown: its cluster is named if theirs are not all the same.
    """
    label = entry.label
    if len({other.result.cluster for other in among}) > 1:
        label = f"{label}, on {entry.result.cluster}"
    if entry.result.dense_parameters is None:
        return label
    return f"{label} (function {changed_function(entry.result.parameter_ratio)})"


def _cents(costs_usd: Sequence[float | None]) -> tuple[str, list[str]]:
    """Return costs in dollars, or in cents where all are below a dollar."""
    if max((cost for cost in costs_usd if cost is not None), default=1.0) >= 1:
        return "$", column(costs_usd, "")[1]
    cents = [None if cost is None else 100 * cost for cost in costs_usd]
    if max((cost for cost in cents if cost is not None), default=1.0) >= 1:
        return "¢", column(cents, "")[1]
    # Fractions of a cent keep their unit: there is no smaller coin.
    return "¢", [NOT_APPLICABLE if cost is None else significant(cost) for cost in cents]


def _rate(entry: RankedStrategy) -> float:
    tokens_per_s = entry.result.tokens_per_s
    return entry.result.samples_per_s if tokens_per_s is None else tokens_per_s


def _counted(entry: RankedStrategy) -> str:
    return "samples" if entry.result.tokens_per_s is None else "tokens"


def _headline(plan: Plan, console: Console) -> None:
    if plan.best is None:
        words = "Nothing fits: no strategy meets every constraint."
        console.print(Text(words, style="bold red"))
    first = plan.best or (plan.ranked[0] if plan.ranked else None)
    if first is not None:
        console.print(Text(job_in_words(first.result, sized=True), style="bold"))
    console.print(
        f"{counted(plan.candidates, 'strategy')}, {plan.feasible:,} feasible, "
        f"{plan.simulated:,} simulated in {format_time(plan.wall_s)}; "
        f"ranked by {plan.objective}.",
        highlight=False,
    )
    if plan.ranked:
        console.print()


def _legend(entries: Sequence[RankedStrategy], console: Console) -> None:
    result = entries[0].result
    rate = _counted(entries[0])
    power = "" if token_columns([result]) else ", power of all nodes before it"
    console.print(
        Text(
            f"\nPer {result.timed}: {rate} of the whole job; memory of the fullest device (it has "
            f"{format_bytes(result.memory.capacity_bytes)}); energy {with_pue(result.pue)}{power}; "
            "cost in dollars or cents (¢).",
            style="dim",
        )
    )


def _rejected(plan: Plan, console: Console) -> None:
    if plan.not_offered:
        section(NOT_TRIED.capitalize(), ["; ".join(plan.not_offered)], console)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for reason, number in sorted(plan.rejected.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(f"{number:,}", reason)
    if plan.rejected:
        section("Rejected", table, console)
