"""`wattree calibrate`: constants of your machine and software from your measured steps."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path

from wattree.cli.output import (
    Calibration,
    JsonPath,
    announce_waits,
    check_outputs,
    deliver,
    progress_bars,
    tell,
)
from wattree.cli.request import argument, asked, request_command


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateRequest:
    """Arguments and options of `wattree calibrate`."""

    job: Path = argument(
        "JOB",
        "Job file (YAML) of what was run, or a list of several: 'runs:' with entries of "
        "'job' and 'step_time' or 'run'.",
    )
    more: list[Path] | None = argument(
        "FILE...", "More traces, as a shell pattern gives them.", value=None
    )
    out: Path = asked("PATH", "File of constants to write, for --calibration.", value=MISSING)
    step_time: list[str] | None = asked(
        "TIME", "Measured step time, such as '12.3 s'. May be repeated."
    )
    run: list[Path] | None = asked(
        "PATH", "Measured run (run.json, or its folder). May be repeated."
    )
    trace: list[Path] | None = asked(
        "FILE...", "Traces of torch.profiler of one run of the job, one for each rank."
    )
    calibration: Calibration = None
    json_path: JsonPath = None


@request_command
def calibrate(request: CalibrateRequest) -> None:
    """Correct predictions by your own runs.

    The constants apply to the job's device and software. Commands with --calibration use them and
    report narrower intervals.

    Example: wattree calibrate job.yaml --step-time '12.3 s' --out mine.yaml
    """
    from wattree.learn.calibrate import calibrate as learn
    from wattree.learn.own_steps import own_steps
    from wattree.report.explained_text import show_learned

    check_outputs(request.out, request.json_path, source=request.job)
    steps = own_steps(
        request.job,
        step_times=request.step_time or (),
        runs=request.run or (),
        traces=(*(request.trace or ()), *(request.more or ())),
    )
    announce_waits()
    with progress_bars() as progress:
        found = learn(steps, out=request.out, base=request.calibration, progress=progress)
    for warning in found.warnings:
        tell(f"wattree: warning: {warning}")
    deliver(found.as_json, request.json_path, lambda console: show_learned(found, console))
