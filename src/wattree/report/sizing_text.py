"""How many nodes a run needs, as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from wattree.report.energy_text import probability, run_facts
from wattree.report.parts import facts_table, headed_table, section
from wattree.report.plan_text import show_assumed, strategy_label
from wattree.report.result_text import summary_rows
from wattree.report.words import NOT_APPLICABLE, count, model_in_words, money, quantity
from wattree.units import counted, format_time, span_in_words, spans

if TYPE_CHECKING:
    from wattree.job import Job
    from wattree.search.sizing import SizedCluster, Sizing

#: Costs that differ by less, relatively, are alike.
_ALIKE = 0.01
#: Assumptions that are named: the software, then site and prices.
_ASSUMPTIONS = 4


def show_sizing(sizing: Sizing, job: Job, console: Console) -> None:
    """Print the smallest cluster that meets everything, its strategy, and what else was tried."""
    smallest = sizing.smallest
    if smallest is None or smallest.best is None or smallest.run is None:
        words = f"No number of {job.cluster.node.name} nodes that was tried meets everything."
        console.print(Text(words, style="bold red"))
    else:
        result = smallest.best.result
        words = (
            f"{smallest.nodes} x {job.cluster.node.name} ({counted(result.ranks, 'device')} in use)"
        )
        console.print(Text(f"{model_in_words(result, sized=True)} needs {words}", style="bold"))
        console.print(Text(strategy_label(smallest.best)))
        console.print(facts_table(summary_rows(result)))
        if job.training.steps > 1:
            section("The run", facts_table(run_facts(smallest.run, sizing.most)), console)
    table = headed_table()
    rate = "samples/s" if job.data.sequence_length is None else "tokens/s"
    limited = any(each.probability is not None for each in sizing.tried)
    for head in ("nodes", "time", "energy", "cost", rate, *["probability"] * limited, ""):
        table.add_column(head, justify="left" if not head else "right", no_wrap=bool(head))
    for each in sizing.tried:
        *figures, sure, verdict = _row(each, smallest)
        table.add_row(*figures, *[sure] * limited, verdict)
    section("Tried" if job.training.steps > 1 else "Tried, for one step", table, console)
    if sizing.ruled_out:
        words = "by estimates, no strategy fits and meets every limit"
        console.print(Text(f"\nRuled out: {_in_spans(sizing.ruled_out)}: {words}.", style="dim"))
    if sizing.skipped:
        console.print(Text(f"\nNot tried: {_in_spans(sizing.skipped)}.", style="dim"))
    if smallest is not None and smallest.best is not None:
        show_assumed(smallest.best.result, console, more="in --json", most=_ASSUMPTIONS)


def _in_spans(numbers: Sequence[int]) -> str:
    return ", ".join(span_in_words(*span) for span in spans(numbers))


def _verdict(each: SizedCluster, smallest: SizedCluster | None) -> str:
    """Return what a number of nodes misses, or how much less it costs than the smallest."""
    if each.misses or each is smallest:
        return ", ".join(each.misses) or "smallest"
    if each.run is None or smallest is None or smallest.run is None:
        return ""
    mine, least = each.run.cost_usd, smallest.run.cost_usd
    if mine is None or not least or mine > (1.0 - _ALIKE) * least:
        return ""
    return f"costs {100 * (1 - mine / least):.0f} % less"


def _row(each: SizedCluster, smallest: SizedCluster | None) -> tuple[str, ...]:
    verdict = _verdict(each, smallest)
    sure = NOT_APPLICABLE if each.probability is None else probability(each.probability)
    if each.best is None or each.run is None:
        return (str(each.nodes), *[NOT_APPLICABLE] * 5, verdict)
    result, run = each.best.result, each.run
    if run.never_ends:
        return (str(each.nodes), "never ends", *[NOT_APPLICABLE] * 3, sure, verdict)
    rate = result.samples_per_s if result.tokens_per_s is None else result.tokens_per_s
    energy = quantity(run.energy_j / 3600, "Wh")
    return (
        str(each.nodes),
        format_time(run.time_s),
        energy,
        money(run.cost_usd),
        count(rate),
        sure,
        verdict,
    )
