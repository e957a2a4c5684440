"""`wattree schedule`: jobs in a queue, in time and space."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from wattree.cli.output import (
    NOTHING_FITS,
    Calibration,
    JsonPath,
    ReportPath,
    announce_waits,
    check_outputs,
    deliver,
    progress_bars,
    quantity_option,
    tell,
)
from wattree.cli.request import argument, asked, request_command
from wattree.report.html.documents import check_report


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRequest:
    """Arguments and options of `wattree schedule`."""

    queue: Path = argument("QUEUE", "Queue file (YAML).")
    calibration: Calibration = None
    limit: str = asked(
        "TIME", "Time that the solver may take to prove how good a schedule is.", value="45 s"
    )
    json_path: JsonPath = None
    report: ReportPath = None


@request_command
def schedule(request: ScheduleRequest) -> None:
    """Schedule a queue of jobs on one cluster.

    Predicts every job on each number of nodes and under each power limit, then solves for the
    schedule with the least lateness and, among those, the least energy, cost, carbon or time. Exit
    code 3 if a deadline cannot be met.

    Example: wattree schedule examples/queue/queue.yaml --report queue.html
    """
    from wattree.report.schedule_text import show_schedule
    from wattree.schedule import schedule as scheduled
    from wattree.schedule.queue_file import load_queue

    check_outputs(request.json_path, request.report, source=request.queue)
    check_report(request.report)
    limit_s = quantity_option("--limit", request.limit, "s")
    assert limit_s is not None
    queue = load_queue(request.queue)
    for line in queue.warnings:
        tell(f"wattree: {request.queue}: warning: {line}")
    announce_waits()
    with progress_bars() as progress:
        found = scheduled(
            queue, calibration=request.calibration, limit_s=limit_s, progress=progress
        )
    if request.report is not None:
        from wattree.report.html.documents import write_schedule_report

        write_schedule_report(request.report, found)
    deliver(found.as_json, request.json_path, lambda console: show_schedule(found, console))
    if not found.meets_deadlines:
        raise typer.Exit(NOTHING_FITS)
