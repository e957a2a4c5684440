"""How many nodes a run needs, as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from wattree.report.energy_text import run_facts
from wattree.report.parts import facts_table, headed_table, section
from wattree.report.plan_text import strategy_label
from wattree.report.result_text import summary_rows
from wattree.report.words import NOT_APPLICABLE, count, money, quantity
from wattree.units import format_time

if TYPE_CHECKING:
    from wattree.job import Job
    from wattree.search.sizing import SizedCluster, Sizing


def show_sizing(sizing: Sizing, job: Job, console: Console) -> None:
    """Print the smallest cluster that meets everything, its strategy, and what else was tried."""
    smallest = sizing.smallest
    if smallest is None or smallest.best is None or smallest.run is None:
        words = f"No number of {job.cluster.node.name} nodes that was tried meets everything."
        console.print(Text(words, style="bold red"))
    else:
        result = smallest.best.result
        words = f"{smallest.nodes} x {job.cluster.node.name} ({result.ranks:,} devices in use)"
        console.print(Text(f"{result.model} needs {words}", style="bold"))
        console.print(Text(strategy_label(smallest.best)))
        console.print(facts_table(summary_rows(result)))
        section("The run", facts_table(run_facts(smallest.run)), console)
    table = headed_table()
    for head in ("nodes", "time", "energy", "cost", "tokens or samples/s", ""):
        table.add_column(head, justify="left" if not head else "right", no_wrap=bool(head))
    for each in sizing.tried:
        table.add_row(*_row(each, smallest))
    section("Tried", table, console)


def _row(each: SizedCluster, smallest: SizedCluster | None) -> tuple[str, ...]:
    verdict = ", ".join(each.misses) or ("smallest" if each is smallest else "")
    if each.best is None or each.run is None:
        return (str(each.nodes), *[NOT_APPLICABLE] * 4, verdict)
    result, run = each.best.result, each.run
    rate = result.samples_per_s if result.tokens_per_s is None else result.tokens_per_s
    energy = quantity(run.energy_j / 3600, "Wh")
    return (
        str(each.nodes), format_time(run.time_s), energy, money(run.cost_usd), count(rate), verdict
    )  # fmt: skip
