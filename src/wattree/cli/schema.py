"""`wattree schema`: the JSON schema of a kind of file, for editors and checkers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from wattree.cli.request import argument, asked, request_command


class SchemaKind(StrEnum):
    """Files that have a schema."""

    JOB = "job"
    STUDY = "study"
    QUEUE = "queue"
    DEVICE = "device"
    NODE = "node"
    FABRIC = "fabric"
    SITE = "site"
    CALIBRATION = "calibration"
    RUN = "run"


def json_schema(kind: SchemaKind) -> dict[str, Any]:
    """Return the JSON schema of a kind of file (draft 2020-12)."""
    from wattree.cost.calibration_schema import calibration_schema
    from wattree.design.schema import study_schema
    from wattree.hardware.schema import hardware_schema
    from wattree.job import job_schema
    from wattree.schedule.queue_file import queue_schema
    from wattree.trace.run_file import run_schema

    writers: dict[SchemaKind, Callable[[], dict[str, Any]]] = {
        SchemaKind.JOB: job_schema,
        SchemaKind.STUDY: study_schema,
        SchemaKind.QUEUE: queue_schema,
        SchemaKind.CALIBRATION: calibration_schema,
        SchemaKind.RUN: run_schema,
    }
    return writers[kind]() if kind in writers else hardware_schema(kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRequest:
    """Arguments and options of `wattree schema`."""

    kind: SchemaKind = argument("KIND", "Kind of file.")
    out: Path | None = asked(
        "PATH", "File to write; by default, or with '-', it is printed.", "--out", "--json"
    )


@request_command
def schema(request: SchemaRequest) -> None:
    """Print the JSON schema of a kind of file that Wattree reads.

    An editor that knows the schema completes keys and marks mistakes. Files that Wattree writes
    name theirs in the first line: # yaml-language-server: $schema=job.schema.json. The schema is
    looked for next to the file.

    Example: wattree schema job --out job.schema.json
    """
    from wattree.report.json_output import write_json

    path = request.out or Path("-")
    write_json(json_schema(request.kind), path, standard_output=sys.stdout)
