"""Output and files of `wattree train`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from wattree.cli.output import deliver, tell
from wattree.errors import WattreeError

if TYPE_CHECKING:
    from wattree.cli.train_request import TrainRequest
    from wattree.runtime.train.compare import PredictionComparison
    from wattree.runtime.train.outcome import Trained


def deliver_trained(request: TrainRequest, found: Trained) -> None:
    """Write and show a training result; it is shown even if its prediction fails."""
    from wattree.runtime.train.compare import compared

    _save_job(request, found)
    comparison = None
    if request.compare:
        try:
            comparison = compared(
                found,
                calibration=request.calibration,
                on_processor=request.device.value == "cpu",
            )
        except WattreeError as error:
            tell(f"wattree: --compare: the job cannot be simulated: {error}")
    if not request.silent:
        _show(request, found, comparison)


def _save_job(request: TrainRequest, found: Trained) -> None:
    """Leave run, result and job in the folder that was named."""
    if request.out is None:
        return
    out = request.out
    from wattree.files import write_atomic
    from wattree.report.json_output import write_json
    from wattree.runtime.saved_job import job_text
    from wattree.trace import write_run

    write_run(found.run, out / "run.json")
    write_json(found.result.as_json(), out / "result.json", standard_output=sys.stdout)
    write_atomic(out / "job.yaml", job_text(request.job, found.job, request.preset))


def _show(request: TrainRequest, found: Trained, comparison: PredictionComparison | None) -> None:
    from wattree.report.train_text import show_trained

    if request.trace_path is not None:
        from wattree.report.perfetto import write_trace

        write_trace(request.trace_path, found.trace)
    value = found.result.as_json()
    if comparison is not None:
        value["comparison"] = comparison.as_json()
    deliver(
        lambda: value,
        request.json_path,
        lambda console: show_trained(found.result, found.run, comparison, console),
    )
