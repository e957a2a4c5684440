"""Contents of the report of a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattree.report.html.report_view import Card, ReportView, TableView
from wattree.report.plots.of_schedule import schedule_plots
from wattree.report.schedule_text import (
    JOBS_HEAD,
    LEAST_GAP,
    OBJECTIVES,
    TOTALS_HEAD,
    answer,
    bound,
    job_rows,
    total_rows,
)
from wattree.report.words import grams, joules, money, percent
from wattree.units import format_time

if TYPE_CHECKING:
    from wattree.schedule import QueueSchedule

_SHOWN = {"energy": joules, "cost": money, "carbon": grams}


def schedule_view(schedule: QueueSchedule) -> ReportView:
    """Return the contents of a schedule's report."""
    jobs = TableView(
        caption="Jobs in the order of their start; power and energy with PUE",
        head=JOBS_HEAD,
        body=[tuple(row.values()) for row in job_rows(schedule)],
        numbers=range(1, len(JOBS_HEAD)),
    )
    totals = TableView(
        caption="Compared with first come, first served",
        head=TOTALS_HEAD,
        body=list(total_rows(schedule)),
        numbers=(1, 2, 3),
    )
    return ReportView(
        answer=answer(schedule),
        cards=_cards(schedule),
        plots=schedule_plots(schedule),
        tables=(jobs, totals),
        lists={
            "Late, because of": [
                f"{job.name}: {job.late_because}" for job in schedule.jobs if job.late_s
            ],
            "Not tried": [f"{name}: {'; '.join(why)}" for name, why in schedule.refused.items()],
            "Assumed": schedule.notes,
        },
    )


def _gap(schedule: QueueSchedule) -> str:
    return "none" if schedule.gap < LEAST_GAP else f"at most {percent(schedule.gap)}"


def _cards(schedule: QueueSchedule) -> list[Card]:
    name = schedule.queue.objective.value
    own, plain = schedule.totals.of(name), schedule.first_come.of(name)
    shown = _SHOWN.get(name, format_time)
    saved = ""
    if own is not None and plain:
        word = "less" if own <= plain else "more"
        saved = f"{percent(abs(1 - own / plain))} {word} than first come, first served"
    late = schedule.totals.late
    due = sum(job.deadline_s is not None for job in schedule.jobs)
    return [
        Card(
            name=OBJECTIVES[name].capitalize(),
            value="unknown" if own is None else shown(own),
            note=saved,
        ),
        Card(
            name="Deadlines",
            value=f"{due - late} of {due} met" if due else "none given",
            note=f"the last job ends after {format_time(schedule.totals.makespan_s)}",
            bad=late > 0,
        ),
        Card(name="Possible improvement", value=_gap(schedule), note=bound(schedule)),
    ]
