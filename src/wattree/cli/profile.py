"""`wattree profile`: the constants of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wattree.cli.output import (
    JsonPath,
    check_outputs,
    deliver,
    progress_bars,
    tell,
)
from wattree.cli.request import asked, request_command


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """Arguments and options of `wattree profile`."""

    out: Path = asked(
        "PATH",
        "Calibration to write; the machine as device and node, and the measurements, go "
        "next to it.",
        value=Path("calibration.yaml"),
        shown=True,
    )
    minutes: float = asked(
        "N",
        "Time to measure. A second call continues where it stopped.",
        value=3.0,
        shown=True,
        least=0.05,
        most=600.0,
    )
    ranks: int | None = asked(
        "N",
        "Processes that work at once, as they will in training. One for each GPU, or two on a CPU.",
        least=1,
        most=256,
    )
    threads: int | None = asked(
        "N",
        "Computing threads of each process; by default the cores divided by the ranks.",
        least=1,
        most=1024,
    )
    json_path: JsonPath = None


@request_command
def profile(request: ProfileRequest) -> None:
    """Measure this machine, and fit the constants of predictions.

    Measures matmuls, memory-bound operators, framework calls, batches, and collectives between
    processes, each on all ranks at once. Needs PyTorch. The constants are used by --calibration of
    simulate, plan, train and validate; a job names the machine as cluster.node. 'wattree calibrate'
    corrects them by runs.

    Example: wattree profile --out calibration.yaml --ranks 2 --threads 1
    """
    from wattree.measure.profile import profile_machine
    from wattree.report.measure_text import show_profile

    check_outputs(request.out, request.json_path, source=Path())
    with progress_bars() as progress:
        found = profile_machine(
            request.out,
            minutes=request.minutes,
            ranks=request.ranks,
            threads=request.threads,
            progress=lambda _, done, wanted: progress("measuring", done, wanted),
        )
    for warning in found.warnings:
        tell(f"wattree: warning: {warning}")
    deliver(found.as_json, request.json_path, lambda console: show_profile(found, console))
