"""Effect of a job's neighbours on its step, as text."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from wattree.report.parts import facts_table, headed_table, section
from wattree.report.words import joules
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
    return headed_table(
        *("neighbour", "ranks", "place", "its step", "together"),
        words={"place"},
        rows=[
            (job.job, f"{job.ranks:,}", _place(job), format_time(job.alone_s), _its(job))
            for job in effect.jobs
        ],
    )


def _place(job: NeighbourJob) -> str:
    if len(job.place) <= _LONGEST_PLACE:
        return job.place
    return job.place[:_LONGEST_PLACE].rpartition(",")[0] + ", …"


def _its(job: NeighbourJob) -> str:
    return "-" if job.concurrent_s is None else format_time(job.concurrent_s)


def _figures(effect: NeighbourEffect) -> Table:
    figures = (
        ("step time", format_time, effect.alone_s, effect.mean_s, _phases(effect)),
        ("exposed communication", format_time, effect.exposed_alone_s, effect.exposed_mean_s, ""),
        ("energy", joules, effect.energy_alone_j, effect.energy_mean_j, ""),
    )
    rows = [
        (name, shown(alone), shown(mean), _more(alone, mean), note)
        for name, shown, alone, mean, note in figures
    ]
    return headed_table("", "alone", "together", "more", "", words={""}, rows=rows)


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
    rows = [
        (
            _KINDS.get(links.kind, links.kind),
            f"delay the step by {_time(links.delay_s)}; crowded for {_time(links.crowded_s)} of it",
        )
        for links in effect.links
        if links.shared
    ]
    rows = rows or [("shared links", "none")]
    if effect.longer_s:
        rows.append(("takes longer", _longer(effect.longer_s)))
    return facts_table(rows)


def _time(time_s: float) -> str:
    return format_time(time_s) if abs(time_s) >= 1e-9 else "0 s"  # below: rounding of sums


def _longer(longer_s: Mapping[str, float]) -> str:
    return ", ".join(f"{name} by {format_time(time_s)}" for name, time_s in longer_s.items())
