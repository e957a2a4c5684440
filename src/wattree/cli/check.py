"""`wattree check`: the meaning, assumptions and problems of a job."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from wattree.cli.job_file import load
from wattree.cli.output import JobPath, JsonPath, check_outputs, deliver
from wattree.cli.request import request_command

if TYPE_CHECKING:
    from rich.console import Console

    from wattree.predict.checked import CheckedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """Arguments and options of `wattree check`."""

    job: JobPath
    json_path: JsonPath = None


@request_command
def check(request: CheckRequest) -> None:
    """Show what a job means, what it assumes, and its mistakes.

    Simulates nothing. Exit code 2 if the job cannot be used; every problem is listed.

    Example: wattree check job.yaml
    """
    from wattree.job.job import naming
    from wattree.predict.checked import checked

    check_outputs(request.json_path, source=request.job)
    job = load(request.job)
    with naming(job):
        found = checked(job)
    deliver(lambda: asdict(found), request.json_path, lambda console: _show(found, console))


def _show(found: CheckedJob, console: Console) -> None:
    from rich.table import Table

    from wattree.report.parts import bullets, section

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, words in found.facts.items():
        table.add_row(name, words)
    console.print(table)
    for title, lines in (("Assumed", found.assumed), ("Warnings", found.warnings)):
        if lines:
            section(title, bullets(lines), console)
