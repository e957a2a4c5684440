"""`wattree export`: a job as traces that other tools read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from wattree.cli.job_file import print_warnings, read_job
from wattree.cli.output import Calibration, JobPath, JsonPath, check_outputs, deliver
from wattree.cli.request import request_command
from wattree.cli.terminated import interrupted_by_term


class Format(StrEnum):
    """Formats that jobs are written in."""

    CHAKRA = "chakra"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What `wattree export` is asked."""

    job: JobPath
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder to write; made if it does not exist.", show_default=False
        ),
    ]
    to: Annotated[Format, typer.Option("--to", help="Format of the traces.")] = Format.CHAKRA
    prefix: Annotated[str, typer.Option(metavar="NAME", help="Files are called NAME.RANK.et.")] = (
        "step"
    )
    plain: Annotated[
        bool, typer.Option("--plain", help="Leave out what only 'wattree replay' reads.")
    ] = False
    calibration: Calibration = None
    json_path: JsonPath = None


@request_command
def export(request: ExportRequest) -> None:
    """Write one training step as Chakra traces, one per rank.

    These are execution traces in the schema of MLCommons. Ranks are not folded: each
    has a file, and comm_group.json has the process groups, as ASTRA-sim reads them.
    'wattree replay' reads them too.

    Example: wattree export job.yaml --to chakra traces
    """
    from wattree.interchange import export_chakra

    assert request.to is Format.CHAKRA
    check_outputs(request.json_path, source=request.job)
    loaded = read_job(request.job)
    if loaded.neighbours:
        print_warnings(request.job, ["neighbours: have no effect here: only the job is written"])
    with interrupted_by_term():
        done = export_chakra(
            loaded,
            request.folder,
            prefix=request.prefix,
            own_attributes=not request.plain,
            calibration=request.calibration,
        )
    print_warnings(request.job, done.warnings)
    from wattree.report.interchange_text import show_exported

    deliver(done.as_json(), request.json_path, lambda console: show_exported(done, console))
