"""Comparison of runs as text: differing settings, figures and reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from wattree.report.parts import bullets, headed_table, section
from wattree.report.words import (
    NOT_APPLICABLE,
    SHOWN_SHARE,
    count,
    grams,
    joules,
    money,
    percent,
    significant,
    watts,
)
from wattree.trace import step_part_words
from wattree.units import format_bytes, format_time

if TYPE_CHECKING:
    from wattree.search.compared import RunComparison


#: Ratios from here on are written as factors.
_FACTOR = 10.0
#: Fact that says what cost is made of.
_PRICE = "price"


@dataclass(frozen=True, slots=True)
class _Row:
    """A figure: its name, where it is found, how it is written, and whether to relate it.

    Of what grows with the step (`of_step`), unlike steps are related by token or sample.
    """

    name: str
    path: tuple[str, ...]
    shown: Callable[[Any], str]
    related: bool = False
    of_step: bool = False


_ROWS = (
    _Row("step time", ("step_time_s",), format_time, related=True),
    _Row("first token", ("generation", "time_to_first_token_s"), format_time, related=True),
    _Row("output token", ("generation", "time_per_output_token_s"), format_time, related=True),
    _Row("tokens/s", ("tokens_per_s",), count, related=True),
    _Row("samples/s", ("samples_per_s",), count, related=True),
    _Row("MFU", ("mfu",), percent),
    _Row("memory", ("memory", "peak_bytes"), format_bytes, related=True),
    _Row("capacity", ("memory", "capacity_bytes"), format_bytes),
    _Row("energy, with PUE", ("energy_j", "total"), joules, related=True, of_step=True),
    _Row(
        "J/token, prefill",
        ("generation", "prefill", "energy_per_token_j"),
        joules,
        related=True,
    ),
    _Row("J/token, decode", ("generation", "decode", "energy_per_token_j"), joules, related=True),
    _Row("power, before PUE", ("average_power_w",), watts),
    _Row("PUE", ("pue",), significant),
    _Row("cost", ("cost_usd",), money, related=True, of_step=True),
    _Row("carbon", ("carbon_gco2e",), grams, of_step=True),
    _Row("whole run", ("run", "time_s"), format_time, related=True),
    _Row("  steps", ("run", "steps"), count),
    _Row("  goodput", ("run", "goodput"), percent),
    _Row("  cost", ("run", "cost_usd"), money, related=True),
)


def show_comparison(comparison: RunComparison, console: Console) -> None:
    """Print the differing settings of runs, their figures in columns, and the reasons."""
    for sentence in comparison.shortages:
        console.print(Text(sentence), soft_wrap=True)
    for run in comparison.runs:
        console.print(Text.assemble((run.name, "bold"), f"  {run.source}"), soft_wrap=True)
    console.print()
    table = headed_table()
    table.add_column("", no_wrap=True)
    for run in comparison.runs:
        table.add_column(run.name, justify="right", overflow="fold")
    for name, *cells in compared_rows(comparison):
        table.add_row(name, *map(Text, map(_amounts, cells) if name == _PRICE else cells))
    console.print(table)
    section("Why", comparison.reasons, console)
    if prices := _prices(comparison):
        section("Prices", bullets(prices), console)
    if comparison.assumed:
        section("Assumed in all runs", bullets(comparison.assumed), console)


def compared_rows(comparison: RunComparison) -> list[tuple[str, ...]]:
    """Return the differing settings of runs, then their figures: a name, and a cell per run."""
    rows = [(fact, *words) for fact, words in comparison.differing.items()]
    rows = [row if row[0] != "software" else _short_names(row) for row in rows]
    figures = [run.figures for run in comparison.runs]
    units = comparison.units_per_step
    lengths = {_at(each, ("run", "samples")) for each in figures}
    for row in _rows(figures):
        if row.path[0] == "run" and len(lengths) > 1:
            row = replace(row, related=False)  # noqa: PLW2901 - as if it had been so
        values = [_at(each, row.path) for each in figures]
        if not any(value is not None for value in values):
            continue
        if not (units and row.of_step):
            rows.append((row.name, *_cells(row, values)))
            continue
        name, counts = units
        each = [v if v is None else v / n for v, n in zip(values, counts, strict=True)]
        rows.append((f"{row.name}, per step", *_cells(replace(row, related=False), values)))
        rows.append((f"  per {name}", *_cells(row, each)))
    return rows


def _amounts(prices: str) -> str:
    """Return prices without whose they are, which no column has room for."""
    return "; ".join(price.partition(", ")[0] for price in prices.split("; "))


def _prices(comparison: RunComparison) -> list[str]:
    """Return the prices that the table shortens in full, each with the runs that have it."""
    runs: dict[str, list[str]] = {}
    for run, prices in zip(comparison.runs, comparison.differing.get(_PRICE, ()), strict=False):
        if _amounts(prices) != prices:
            runs.setdefault(prices, []).append(run.name)
    return [f"{', '.join(names)}: {prices}" for prices, names in runs.items()]


def _short_names(row: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of software families without their titles, which no column has room for."""
    return tuple(cell.partition(":")[0] for cell in row)


def _rows(figures: list[Mapping[str, Any]]) -> Iterator[_Row]:
    """Yield the rows: figures, with the parts of the step below its time."""
    first, *rest = _ROWS
    yield first
    words = step_part_words(*(each.get("strategy") for each in figures))
    for name in dict.fromkeys(part for each in figures for part in each["time_s"]):
        if any(
            each["time_s"].get(name, 0.0) >= SHOWN_SHARE * each["step_time_s"] for each in figures
        ):
            yield _Row(f"  {words.get(name, name)}", ("time_s", name), _time)
    yield from rest


def _time(value: float) -> str:
    return format_time(value) if value else "0 s"


def _at(figures: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = figures
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) else None


def _cells(row: _Row, values: list[Any]) -> Iterator[str]:
    """Yield the cells of a row, one per run; if related, with the difference from the first."""
    for index, value in enumerate(values):
        if value is None:
            yield NOT_APPLICABLE
        elif index and row.related and values[0]:
            yield f"{row.shown(value)}{_change(value / values[0])}"
        else:
            yield row.shown(value)


def _change(ratio: float) -> str:
    """Return a difference in brackets: a factor from ten on, nothing where it is none."""
    if ratio >= _FACTOR:
        return f" (× {significant(ratio)})"
    percent_more = f"{100 * (ratio - 1):+.1f}"
    return "" if float(percent_more) == 0 else f" ({percent_more} %)"
