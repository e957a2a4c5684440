"""The points of a study as a table: the best first, infeasible ones with their reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wattree.design import Outcome, Results
from wattree.design.answers import Sweep, sweep_of
from wattree.design.figures import OVER_CAPITAL, OVER_SITE_POWER
from wattree.design.study import OBJECTIVE_TOTALS
from wattree.job.offers import NOT_TRIED
from wattree.report.design.basis import left_out
from wattree.report.design.words import MEASURES, SHORT, amount, level
from wattree.search.objective import LIMITS
from wattree.search.screen import OUT_OF_MEMORY, OVER_POWER
from wattree.units import counted

#: Points of a table that a terminal shows; files have them all.
_MOST_ROWS = 12
#: Totals in the order in which they are left out of a narrow table.
_LEAST_ASKED = ("carbon_gco2e", "power_w", "capital_usd", "cost_usd", "energy_j")
#: Totals of the whole site, with a word on what they are of.
_AT_SITE = {"energy_j": "", "power_w": "peak "}
#: Columns between two figures.
_GAP = 2

_LESS_POWER: Final = (
    "a higher constraints.power, an axis cluster.power_limit (of each device), or fewer devices "
    "(cluster.nodes; search.fewer_devices: true)"
)
#: Kind of reason → which constraint or axis of the study to change where nothing is feasible.
_REMEDIES: Final = {
    OUT_OF_MEMORY: (
        "more nodes (axis cluster.nodes), devices with more memory (cluster.node, device.memory), "
        "a smaller search.margin, or fewer keys under search"
    ),
    OVER_POWER: _LESS_POWER,
    OVER_SITE_POWER: _LESS_POWER,
    OVER_CAPITAL: "a larger constraints.capital, or an axis cluster.nodes or cluster.node",
    LIMITS["time"][0]: "a later constraints.deadline, or an axis cluster.nodes or cluster.node",
    LIMITS["cost"][0]: "a larger constraints.budget, or an axis cluster.nodes or cluster.node",
    LIMITS["energy"][0]: "a higher constraints.energy, or an axis cluster.power_limit",
    LIMITS["carbon"][0]: "a higher constraints.carbon, or an axis cluster.site",
}


def show_points(results: Results, console: Console, *, rows: int = _MOST_ROWS) -> None:
    """Print the best points of a study by its first objective, and the best by each other one."""
    study, feasible, sweep = results.study, results.feasible, sweep_of(results)
    console.print(study.title or study.name, markup=False)
    for note in study.notes:
        console.print(f"note: {note}", markup=False)
    order = results.ranked(study.objectives[0])
    order = order[feasible[order]] if len(order) else order
    totals = [name for name in SHORT if not np.isnan(results.total(name)).all()]
    least = {o: best for o in study.objectives if (best := results.best(o)) is not None}
    listed = {*order[:rows].tolist(), *least.values()}
    shown = [index for index in order.tolist() if index in listed]
    cells = {index: _cells(sweep, index, totals) for index in shown}
    heads = ["point", *(axis.label for axis in study.axes), *(SHORT[name] for name in totals)]
    rows_of = [[f"#{index + 1}", *row] for index, row in cells.items()]  # numbered as on the page
    # Figures are never cut or broken at their unit, whatever has to go; names wrap.
    names = {place for place, axis in enumerate(sweep.axes, 1) if not axis.numeric}
    needs = {
        head: max(_longest_word(head), *(_width(row[place], place in names) for row in rows_of), 0)
        for place, head in enumerate(heads)
    }
    dropped = _too_many(needs, totals, study.objectives, console.width)
    kept = [place for place, head in enumerate(heads) if head not in dropped]
    table = Table(box=None, pad_edge=False)
    for place in kept:
        is_axis = 0 < place <= len(study.axes)
        table.add_column(
            Text(heads[place]),
            justify="left" if is_axis else "right",
            overflow="fold",
            no_wrap=not is_axis,
            min_width=needs[heads[place]],
        )
    for row in rows_of:
        table.add_row(*(Text(row[place]) for place in kept))
    if len(order):
        # What is still too wide the terminal breaks: nothing is cut.
        console.print(table, width=max(console.width, _taken(needs, dropped)), crop=False)
        _show_basis({head for head in heads if head not in dropped}, dropped, console)
        _show_strategies({n: results.outcomes[n] for n in shown}, console)
    if len(least) > 1:
        named = (f"{MEASURES[OBJECTIVE_TOTALS[o]]} at #{n + 1}" for o, n in least.items())
        console.print(f"least {', '.join(named)}", markup=False)
    finished, there = len(results), results.points or len(results)
    console.print(
        f"{finished:,} of {counted(there, 'point')} finished, {int(feasible.sum()):,} feasible"
        + (f", {len(shown)} shown" if len(order) > len(shown) else "")
    )
    if results.out_of_time:
        minutes = results.study.sampler.minutes
        console.print(f"the study's {minutes:g} minutes were over: run again to go on")
    _show_reasons(results, console)
    for words in left_out(results):
        console.print(f"{NOT_TRIED.capitalize()}: {words}", markup=False)


def _show_basis(shown: AbstractSet[str], dropped: Sequence[str], console: Console) -> None:
    """Print what the totals of a table include, and which it has no room for."""
    found = [f"{word}{SHORT[name]}" for name, word in _AT_SITE.items() if SHORT[name] in shown]
    lines = [f"{' and '.join(found).capitalize()} with PUE."] if found else []
    lines += [f"Not shown: {', '.join(dropped)}."] if dropped else []
    if lines:
        console.print(" ".join(lines))


def _too_many(
    needs: Mapping[str, int], totals: Sequence[str], objectives: Sequence[str], width: int
) -> list[str]:
    """Return the heads of totals for which a terminal has no room, objectives last.

    The first objective stays.

    Args:
        needs: Head of each column → its least width.
    """
    first, *others = (OBJECTIVE_TOTALS[name] for name in objectives)
    dropped: list[str] = []
    for name in sorted(_LEAST_ASKED, key=lambda name: name in others):
        if _taken(needs, dropped) > width and name in totals and name != first:
            dropped.append(SHORT[name])
    return dropped


def _taken(needs: Mapping[str, int], dropped: Sequence[str]) -> int:
    """Return the least width of a table without some columns."""
    return sum(needs[head] + _GAP for head in needs if head not in dropped) - _GAP


def _width(text: str, wraps: bool) -> int:  # noqa: FBT001 - of one cell
    return _longest_word(text) if wraps else len(text)


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _cells(sweep: Sweep, point: int, totals: list[str]) -> list[str]:
    values = [level(axis, axis.value(point)) for axis in sweep.axes]
    return [*values, *(amount(name, float(sweep.measures[name][point])) for name in totals)]


def _show_strategies(outcomes: Mapping[int, Outcome], console: Console) -> None:
    """Print under which strategies the points of the table are trained, each once."""
    points: dict[str, list[str]] = {}
    for index, outcome in outcomes.items():
        named = len(outcome.workloads) > 1
        for entry in outcome.workloads:
            notes = "".join(f" ({note})" for note in entry.notes)
            words = f"{entry.workload}: {entry.strategy}" if named else entry.strategy
            points.setdefault(f"{words}{notes}", []).append(f"#{index + 1}")
    for words, numbers in points.items():
        console.print(f"{', '.join(numbers)}: {words}", markup=False)


def _show_reasons(results: Results, console: Console) -> None:
    """Print why points are not feasible, each reason's kind once with an example."""
    kinds: dict[str, list[Outcome]] = {}
    for outcome in results.outcomes:
        if not outcome.feasible:
            refused = next((e.reason for e in outcome.workloads if not e.feasible), None)
            kind = str(refused or outcome.reason).partition(":")[0]
            kinds.setdefault(kind, []).append(outcome)
    for kind, outcomes in sorted(kinds.items(), key=lambda item: -len(item[1])):
        reason = outcomes[0].reason
        example = "" if reason == kind else f"; for one: {reason}"
        console.print(f"{len(outcomes):,} x {kind}{example}", markup=False)
        if kind in _REMEDIES and not results.feasible.any():
            console.print(f"  what would help: {_REMEDIES[kind]}", markup=False)
