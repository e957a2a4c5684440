"""A schedule as text: start and placement of each job, and the savings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from wattree.job.problems import ranges
from wattree.report.parts import bullets, headed_table, section
from wattree.report.words import NOT_APPLICABLE, grams, joules, money, percent, watts
from wattree.units import format_time

if TYPE_CHECKING:
    from wattree.schedule import QueueSchedule, ScheduledJob

#: QueueObjective → what it is called.
OBJECTIVES = {
    "energy": "energy",
    "cost": "cost",
    "carbon": "carbon",
    "completion": "time until jobs end",
    "makespan": "time until all jobs end",
}
#: Below this share no schedule is said to be better.
LEAST_GAP = 1e-4


def show_schedule(schedule: QueueSchedule, console: Console) -> None:
    """Print the schedule, its comparison with a plain queue, and a bound."""
    style = "bold" if schedule.meets_deadlines else "bold red"
    console.print(Text(answer(schedule), style=style), soft_wrap=True)
    console.print()
    rows = islice(job_rows(schedule), _MOST_ROWS)
    cells = ([row[head] for head in _SHOWN] for row in rows)
    console.print(headed_table(*_SHOWN, rows=cells))
    console.print(Text("Power and energy with PUE.", style="dim"))
    if (more := len(schedule.jobs) - _MOST_ROWS) > 0:
        console.print(f"and {more} later ones (--json, --report)")
    compared = headed_table(*TOTALS_HEAD, rows=total_rows(schedule))
    section("Compared with first come, first served", compared, console)
    late = [f"{job.name}: {job.late_because}" for job in schedule.jobs if job.late_s]
    if late:
        section("Late, because of", bullets(late), console)
    if schedule.refused:
        lines = [f"{name}: {'; '.join(why)}" for name, why in schedule.refused.items()]
        section("Not tried", bullets(lines), console)
    section("Assumed", bullets(schedule.notes), console)


def answer(schedule: QueueSchedule) -> str:
    """Return the answer in a sentence."""
    jobs, late = len(schedule.jobs), [job for job in schedule.jobs if job.late_s]
    if late:
        worst = max(late, key=lambda job: job.late_s)
        return (
            f"{len(late)} of {jobs} jobs end after their deadline, {worst.name} by "
            f"{format_time(worst.late_s)}; {bound(schedule)}"
        )
    in_time = " in time" if any(job.deadline_s is not None for job in schedule.jobs) else ""
    end = format_time(schedule.totals.makespan_s)
    if jobs == 1:
        return f"The job ends{in_time}, after {end}; {bound(schedule)}"
    return f"{jobs} jobs end{in_time}, the last after {end}; {bound(schedule)}"


def bound(schedule: QueueSchedule) -> str:
    """Return the largest possible improvement by another schedule."""
    late = schedule.totals.lateness_s - schedule.least_lateness_s > 1e-6
    what = "lateness" if late else OBJECTIVES[schedule.queue.objective.value]
    if schedule.gap < LEAST_GAP:
        less = "ends earlier" if what == OBJECTIVES["makespan"] else f"has less {what}"
        return f"no other schedule in slots of {format_time(schedule.slot_s)} {less}"
    slots = f"in slots of {format_time(schedule.slot_s)}"
    return f"another schedule {slots} has at most {percent(schedule.gap)} less {what}"


JOBS_HEAD = ("job", "nodes", "start", "end", "80 %", "limit", "power", "energy", "carbon", "late")
#: What a terminal has room for: jobs, and of these cells.
_MOST_ROWS = 20
_SHOWN = ("job", "nodes", "start", "end", "limit", "power", "energy", "late")


def job_rows(schedule: QueueSchedule) -> Iterator[dict[str, str]]:
    """Yield a line for each job: head → cell, for all of `JOBS_HEAD`."""
    for job in schedule.jobs:
        yield {
            "job": job.name,
            "nodes": ranges(job.nodes),
            "start": format_time(job.start_s) if job.start_s else "0",
            "end": format_time(job.end_s),
            "80 %": " to ".join(format_time(each) for each in job.end_interval_s),
            "limit": NOT_APPLICABLE if job.power_limit_w is None else watts(job.power_limit_w),
            "power": watts(job.power_w),
            "energy": joules(job.energy_j),
            "carbon": grams(job.carbon_gco2e),
            "late": _late(job),
        }


def _late(job: ScheduledJob) -> str:
    if job.deadline_s is None:
        return NOT_APPLICABLE
    return format_time(job.late_s) if job.late_s else "no"


TOTALS_HEAD = ("", "this schedule", "first come", "change")


def total_rows(schedule: QueueSchedule) -> Iterator[tuple[str, str, str, str]]:
    """Yield a line for each figure, with the cells of `TOTALS_HEAD`."""
    own, plain = schedule.totals, schedule.first_come
    figures = (
        ("energy, with PUE", joules, "energy_j"),
        ("cost", money, "cost_usd"),
        ("carbon", grams, "carbon_gco2e"),
        ("last job ends", format_time, "makespan_s"),
        ("mean end, weighted by priority", format_time, "completion_s"),
    )
    for name, shown, key in figures:
        ours, theirs = getattr(own, key), getattr(plain, key)
        if ours is not None:
            change = f"{100 * (ours / theirs - 1):+.1f} %" if theirs else NOT_APPLICABLE
            yield name, shown(ours), shown(theirs), change
    if own.lateness_s or plain.lateness_s:
        yield "jobs that are late", f"{own.late}", f"{plain.late}", ""
