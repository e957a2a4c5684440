"""Exports, and replays of traces, as text for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from wattree.report.words import part_in_words, percent, quantity
from wattree.units import counted, format_bytes, format_time

if TYPE_CHECKING:
    from wattree.frameworks import ExportedRecipe
    from wattree.interchange import Exported, Replay

_TIMES_FROM = {
    "wattree": "as simulated when Wattree wrote it",
    "recorded": "recorded in the trace; links are not modeled",
    "cluster": "communication as the cluster does it",
}


def show_exported(done: Exported, console: Console) -> None:
    """Print the files that an export wrote."""
    console.print(
        f"{counted(done.ranks, 'trace')}, {counted(done.nodes, 'node')}, "
        f"{format_bytes(done.size_bytes)}: {done.folder}/{done.prefix}.RANK.et",
        soft_wrap=True,
    )
    console.print(
        f"{counted(done.groups, 'process group')}: {done.folder}/comm_group.json", soft_wrap=True
    )


def show_replay(done: Replay, console: Console) -> None:
    """Print the time of a replayed trace and where it goes."""
    console.print(
        Text(
            f"{done.source}: {counted(done.ranks, 'rank')}, {counted(done.nodes, 'node')}",
            style="bold",
        )
    )
    console.print(f"Times: {_TIMES_FROM[done.times_from]}\n")
    console.print(Text(f"Step time  {format_time(done.step_time_s)}", style="bold"))
    console.print(f"\nWhere the step goes (rank {done.slowest_rank}, which computes longest)")
    times = {part_in_words(name): part for name, part in asdict(done.time_s).items()}
    _show_parts(times, done.step_time_s, lambda part: format_time(part) if part else "0 s", console)
    _show_energy(done, console)
    if done.timeless_nodes:
        console.print(
            f"\n{done.timeless_nodes:,} computations have neither a time nor operations to compute "
            "one from; they count as 0 s."
        )
    console.print(
        Text(
            f"\nSimulated {done.tasks:,} tasks, {done.events:,} events; read in "
            f"{format_time(done.read_s)}, executed in {format_time(done.run_s)}.",
            style="dim",
        )
    )


def _show_energy(done: Replay, console: Console) -> None:
    """Print the energy with its evidence and the parts that it excludes."""
    energy = done.energy
    if energy is None:
        console.print(
            "\nEnergy: not known without a device; name one with --cluster NODE[:N].",
            soft_wrap=True,
        )
        return
    console.print(
        Text(
            f"\nEnergy  {quantity(energy.use.total, 'J')} with PUE, on average "
            f"{quantity(energy.average_w, 'W')} before it"
        )
    )
    parts = {"at rest, hosts, switches": energy.use.static, "work": energy.use.dynamic}
    _show_parts(parts, energy.use.total, lambda part: quantity(part, "J"), console)
    shares = ", ".join(f"{percent(part)} {kind}" for kind, part in energy.evidence.share.items())
    console.print(f"  Rests on: {shares}; {energy.evidence.note}.", soft_wrap=True)
    for domain in energy.not_counted:
        console.print(f"  Not counted: {domain}.", soft_wrap=True)


def _show_parts(
    parts: Mapping[str, float], total: float, words: Callable[[float], str], console: Console
) -> None:
    """Print a table of the parts of a total, each with its share."""
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 2))
    table.add_column(no_wrap=True, min_width=22)
    table.add_column(justify="right", no_wrap=True, min_width=10)
    table.add_column(justify="right", no_wrap=True, min_width=7)
    for name, part in parts.items():
        table.add_row(name, words(part), percent(part / total) if total else "")
    console.print(table)


def show_exported_recipe(done: ExportedRecipe, console: Console) -> None:
    """Print what an export wrote, and what is left to do."""
    console.print(Text(f"{done.folder}: {', '.join(done.files)}"), soft_wrap=True)
    console.print(Text(f"for {done.versions}"), soft_wrap=True)
    for title, lines in (("Fill in", done.fill_in), ("Assumed", done.assumed)):
        if lines:
            console.print(Text(f"\n{title}", style="bold"))
        for line in lines:
            console.print(Padding(Text(f"- {line}"), (0, 0, 0, 2)))
