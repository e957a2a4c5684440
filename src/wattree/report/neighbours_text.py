"""Effect of a job's neighbours on its step, as text."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from wattree.report.parts import headed_table, plain_table, section
from wattree.report.words import quantity
from wattree.trace import NeighbourEffect, NeighbourJob
from wattree.units import format_time

_KINDS = {"scale-up": "ports in nodes", "network": "adapters", "uplink": "uplinks of leaves"}
#: A longer list of devices says less than its beginning.
_LONGEST_PLACE = 30


def show_neighbours(effect: NeighbourEffect, console: Console) -> None:
    """Print a job's step alone and with its neighbours, and the causes of the difference."""
    title = "With its neighbors (all other figures: alone)"
    section(title, (_jobs(effect), _figures(effect), _causes(effect)), console)


def _jobs(effect: NeighbourEffect) -> Table:
    table = headed_table()
    table.add_column("neighbour")
    table.add_column("ranks", justify="right")
    table.add_column("place")
    table.add_column("its step", justify="right", no_wrap=True)
    table.add_column("together", justify="right", no_wrap=True)
    for job in effect.jobs:
        table.add_row(job.job, f"{job.ranks:,}", _place(job), format_time(job.alone_s), _its(job))
    return table


def _place(job: NeighbourJob) -> str:
    if len(job.place) <= _LONGEST_PLACE:
        return job.place
    return job.place[:_LONGEST_PLACE].rpartition(",")[0] + ", …"


def _its(job: NeighbourJob) -> str:
    return "-" if job.concurrent_s is None else format_time(job.concurrent_s)


def _figures(effect: NeighbourEffect) -> Table:
    table = headed_table()
    for head in ("", "alone", "together", "more"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    table.add_column("")
    table.add_row(
        "step time",
        format_time(effect.alone_s),
        format_time(effect.mean_s),
        _more(effect.alone_s, effect.mean_s),
        _phases(effect),
    )
    table.add_row(
        "exposed communication",
        *(format_time(time_s) for time_s in (effect.exposed_alone_s, effect.exposed_mean_s)),
        _more(effect.exposed_alone_s, effect.exposed_mean_s),
        "",
    )
    table.add_row(
        "energy",
        quantity(effect.energy_alone_j, "J"),
        quantity(effect.energy_mean_j, "J"),
        _more(effect.energy_alone_j, effect.energy_mean_j),
        "",
    )
    return table


def _phases(effect: NeighbourEffect) -> str:
    if effect.phases_given:
        return "with the offsets given"
    least, most = format_time(effect.least_s), format_time(effect.most_s)
    offsets = f"{len(effect.executions)} offsets"
    return f"the same at {offsets}" if least == most else f"{least} to {most} at {offsets}"


def _more(before: float, after: float) -> str:
    if before <= 0:
        return "-"
    grown = round(100 * (after / before - 1), 1)
    return f"{grown:+.1f} %" if grown else "0.0 %"


def _causes(effect: NeighbourEffect) -> Table:
    table = plain_table()
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    shared = [links for links in effect.links if links.shared]
    if not shared:
        table.add_row("shared links", "none")
    for links in shared:
        table.add_row(
            _KINDS.get(links.kind, links.kind),
            f"delay the step by {_time(links.delay_s)}; crowded for {_time(links.crowded_s)} of it",
        )
    if effect.longer_s:
        table.add_row("takes longer", _longer(effect.longer_s))
    return table


def _time(time_s: float) -> str:
    return format_time(time_s) if abs(time_s) >= 1e-9 else "0 s"  # below: rounding of sums


def _longer(longer_s: Mapping[str, float]) -> str:
    return ", ".join(f"{name} by {format_time(time_s)}" for name, time_s in longer_s.items())
