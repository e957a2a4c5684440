"""What `wattree train` shows and keeps of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from wattree.cli.output import deliver
from wattree.errors import WattreeError

if TYPE_CHECKING:
    from wattree.runtime.train.compare import Comparison
    from wattree.runtime.train.outcome import Trained

__all__ = ["deliver_trained"]


def deliver_trained(
    found: Trained,
    path: Path,
    calibration: Path | None,
    *,
    compare: bool,
    silent: bool,
    preset: str | None,
    out: Path | None,
    json_path: Path | None,
    trace_path: Path | None,
) -> None:
    """Write and show what was trained; a prediction that fails takes nothing of it away."""
    from wattree.runtime.train.compare import compared

    _keep(path, out, found, preset)
    comparison = None
    if compare:
        try:
            comparison = compared(found, calibration=calibration)
        except WattreeError as error:
            typer.echo(f"wattree: --compare: the job cannot be simulated: {error}", err=True)
    if not silent:
        _show(found, comparison, json_path, trace_path)


def _keep(path: Path, out: Path | None, found: Trained, preset: str | None) -> None:
    """Leave run, result and job in the folder that was named."""
    if out is None:
        return
    from wattree.files import write_atomic
    from wattree.report.json_output import write_json
    from wattree.runtime.kept_job import job_text
    from wattree.trace import write_run

    write_run(found.run, out / "run.json")
    write_json(found.result.as_json(), out / "result.json", standard_output=sys.stdout)
    write_atomic(out / "job.yaml", job_text(path, found.job, preset))


def _show(
    found: Trained, comparison: Comparison | None, json_path: Path | None, trace_path: Path | None
) -> None:
    from wattree.report.train_text import show_trained

    if trace_path is not None:
        from wattree.report.perfetto import write_trace

        write_trace(trace_path, found.trace)
    value = found.result.as_json()
    if comparison is not None:
        value["comparison"] = comparison.as_json()
    deliver(
        value, json_path, lambda console: show_trained(found.result, found.run, comparison, console)
    )
