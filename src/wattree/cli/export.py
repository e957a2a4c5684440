"""`wattree export`: a job as traces that other tools read, or as a framework's own files."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wattree.cli.job_file import print_warnings, read_job
from wattree.cli.output import Calibration, JobPath, JsonPath, check_outputs, deliver
from wattree.cli.request import argument, asked, request_command, switch
from wattree.process import handled_signals

if TYPE_CHECKING:
    from wattree.job import Job

#: Traces; every other format is a framework.
CHAKRA: Final = "chakra"
#: For help, which loads no framework.
FRAMEWORK_NAMES: Final = (
    "torchtitan, megatron-lm, megatron-bridge, deepspeed, accelerate, hf-trainer, maxtext"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """Arguments and options of `wattree export`."""

    job: JobPath
    folder: Path = argument("DIR", "Folder to write; made if it does not exist.")
    to: str = asked(
        "FORMAT",
        f"{CHAKRA}: traces of a step; or the framework to train with: {FRAMEWORK_NAMES}.",
        "--to",
        value=CHAKRA,
        shown=True,
    )
    prefix: str = asked("NAME", "Traces are written to NAME.RANK.et.", value="step", shown=True)
    plain: bool = switch("--plain", "Leave out of traces what only 'wattree replay' reads.")
    calibration: Calibration = None
    json_path: JsonPath = None


@request_command
def export(request: ExportRequest) -> None:
    """Export a job as traces, or as the files of a framework.

    Traces follow the Chakra schema of MLCommons: one file per rank, read by ASTRA-sim and 'wattree
    replay'. For a framework, DIR gets its configuration, launch.sh and a README.md that lists what
    to fill in. A job that the framework cannot express is rejected with every misfit.

    Example: wattree export best.yaml --to torchtitan run
    """
    check_outputs(request.json_path, source=request.job)
    loaded = read_job(request.job)
    if request.to == CHAKRA:
        _export_traces(loaded, request)
    else:
        _export_recipe(loaded, request)


def _export_traces(loaded: Job, request: ExportRequest) -> None:
    from wattree.interchange import export_chakra

    if loaded.neighbours:
        print_warnings(request.job, ["neighbours: have no effect here: only the job is written"])
    with _interrupted_by_term():
        done = export_chakra(
            loaded,
            request.folder,
            prefix=request.prefix,
            own_attributes=not request.plain,
            calibration=request.calibration,
        )
    print_warnings(request.job, done.warnings)
    from wattree.report.interchange_text import show_exported

    deliver(done.as_json, request.json_path, lambda console: show_exported(done, console))


def _export_recipe(loaded: Job, request: ExportRequest) -> None:
    from wattree.errors import UnknownNameError
    from wattree.frameworks import export_recipe, written_frameworks
    from wattree.report.interchange_text import show_exported_recipe

    if request.to not in written_frameworks():
        known = (CHAKRA, *written_frameworks())
        raise UnknownNameError(kind="format", name=request.to, known=known, where="--to")
    if request.plain:
        print_warnings(request.job, [f"--plain: has no effect with --to {request.to}"])
    with _interrupted_by_term():
        done = export_recipe(loaded, request.to, request.folder, calibration=request.calibration)
    deliver(done.as_json, request.json_path, lambda console: show_exported_recipe(done, console))


def _interrupted_by_term() -> AbstractContextManager[None]:
    """Raise `KeyboardInterrupt` on SIGTERM while the block runs: else Python ends at once."""
    return handled_signals([signal.SIGTERM], signal.default_int_handler)
