"""`wattree measure`: time and energy of a command on this machine."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from wattree.cli.output import JsonPath, check_outputs, deliver, quantity_option, tell
from wattree.cli.request import argument, asked, choice, request_command
from wattree.errors import JobError

if TYPE_CHECKING:
    from wattree.measure.measured import Measured

#: Sensors take readings so often at least, and a run of ten readings is to be short. [s]
_MOST_INTERVAL_S = 60.0


class What(StrEnum):
    """Activities of a command: each step of the fitting protocol isolates a part."""

    IDLE = "idle"
    LOADER = "loader"
    RESIDENT = "resident"
    COLLECTIVE = "collective"
    TRAINING = "training"


#: Work of one step, as `trace.Work` has it.
_WORK = (
    *("samples", "flop", "memory_bytes", "read_bytes"),
    *("core_s", "copied_bytes", "network_bytes", "gradient_bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest:
    """Arguments and options of `wattree measure`."""

    command: list[str] | None = argument(
        "CMD", "Command to run, after '--'; its exit code is passed on.", value=None
    )
    out: Path | None = asked(
        "PATH", "Write the run, for 'wattree energy'; also if the command fails."
    )
    json_path: JsonPath = None
    meter: list[str] | None = asked(
        "NAME",
        "Meter to read: nvml, amdsmi, apple, rapl, csv, replay, estimate, processor-time; may be "
        "repeated. By default all available.",
    )
    csv: Path | None = asked(
        "FILE", "Log of the node's meter (time,watts or time,joules), nvidia-smi or CodeCarbon."
    )
    csv_shift: float = asked(
        "S", "Seconds by which that meter's clock is behind.", value=0.0, shown=True
    )
    replay: Path | None = asked("RUN", "Run whose power is replayed instead.")
    interval: str = asked("TIME", "Time between two readings.", value="100 ms", shown=True)
    activity: What = choice("What the command does, for fits; idle runs none.", value=What.TRAINING)
    seconds: float | None = asked("S", "Length of an idle run.")
    repeat: int = asked("N", "Run the command N times in one window.", value=1, shown=True, least=1)
    repeat_for: float = asked("S", "Repeat the command for S seconds.", value=0.0, shown=True)
    node: str = asked("NAME", "Kind of this node.", value="")
    model: str = asked("NAME", "What is trained.", value="")
    iterations: int | None = asked(
        "N",
        "Steps in one run of the command. The options below count one step of all its processes.",
        least=1,
    )
    ranks: int | None = asked("N", "Processes that train together.", least=1)
    samples: float | None = asked("N", "Samples of a step.")
    flop: float | None = asked("N", "FLOP, forward and backward.")
    memory_bytes: float | None = asked("N", "Bytes of device memory moved.")
    read_bytes: float | None = asked("N", "Bytes read from storage.")
    core_s: float | None = asked("N", "Core time of reading and preparing, in s.", "--core-seconds")
    copied_bytes: float | None = asked("N", "Bytes copied to devices.")
    network_bytes: float | None = asked("N", "Bytes sent by all processes.")
    gradient_bytes: float | None = asked("N", "Bytes that each process all-reduces.")
    tdp: str | None = asked(
        "POWER", "Rated power of all processors, for the estimate on machines without a meter."
    )

    def __post_init__(self) -> None:
        problems = [*self._contradictions(), *self._work_problems()]
        if problems:
            raise JobError("wattree measure", problems)
        self._check_times()
        check_outputs(self.out, self.json_path, source=self.csv or Path("-"))

    @property
    def interval_s(self) -> float:
        """Return the time between two readings. [s]

        Raises:
            JobError: It is too long for any sensor.
        """
        found = quantity_option("--interval", self.interval, "s")
        assert found is not None
        if found > _MOST_INTERVAL_S:
            raise JobError(
                "--interval", [f"found '{self.interval}', expected at most {_MOST_INTERVAL_S:g} s"]
            )
        return found

    def given_work(self) -> dict[str, float]:
        """Return the work of one step as far as it was given, by field of `trace.Work`."""
        given = {name: getattr(self, name) for name in _WORK}
        return {name: amount for name, amount in given.items() if amount is not None}

    def _contradictions(self) -> list[str]:
        """Return the contradictions between options."""
        is_idle, seconds, problems = self.activity is What.IDLE, self.seconds, []
        if self.command and is_idle:
            problems.append(
                "--activity idle: found a command, expected none: nothing runs while idle"
            )
        if self.command and seconds is not None:
            problems.append("--seconds: has a meaning for --activity idle alone")
        if not self.command and not is_idle:
            problems.append(
                "found no command, expected: wattree measure -- CMD…, or --activity idle "
                "--seconds 60"
            )
        if not self.command and is_idle and not (seconds and 0 < seconds < float("inf")):
            what = "is missing" if seconds is None else f"found {seconds}"
            problems.append(f"--seconds: {what}, expected a length above 0, such as 60")
        return problems

    def _work_problems(self) -> list[str]:
        """Return the work that no step has, and isolated runs that no fit could use."""
        given = self.given_work()
        names = {
            name: "--" + name.replace("core_s", "core_seconds").replace("_", "-") for name in given
        }
        problems = [
            f"{names[name]}: found {amount}, expected 0 or more"
            for name, amount in given.items()
            if not (math.isfinite(amount) and amount >= 0)
        ]
        if self.activity is What.IDLE and (given or self.iterations is not None):
            problems.append("--activity idle: found work, expected none: nothing runs while idle")
        elif self.iterations is None and given:
            problems.append(
                f"--iterations: is missing; {', '.join(names.values())} are of one step"
            )
        elif self.iterations is None and self.activity not in {What.IDLE, What.TRAINING}:
            problems.append(
                f"--iterations: is missing, expected how many steps the command of '--activity "
                f"{self.activity}' does: fits go by steps; or label them with "
                "wattree.measure.Stages"
            )
        return problems

    def _check_times(self) -> None:
        """Refuse seconds that are none, and a shift of nothing.

        Raises:
            JobError: One of these.
        """
        shift = self.csv_shift
        if not math.isfinite(shift):
            raise JobError("--csv-shift", [f"found {shift}, expected a number of seconds"])
        if shift and self.csv is None:
            raise JobError("--csv-shift", [f"found {shift} without --csv, whose times it shifts"])
        if not (math.isfinite(self.repeat_for) and self.repeat_for >= 0):
            raise JobError(
                "--repeat-for", [f"found {self.repeat_for}, expected a number of seconds"]
            )


@request_command
def measure(request: MeasureRequest) -> None:
    """Run a command and report the energy it uses, by device.

    Reads the counters of NVIDIA, AMD and Apple devices and of processors, and the CSV file of a
    node's own meter. Devices that cannot be read are named. Without a meter the
    energy is estimated from processor time and marked as an estimate.

    Example: wattree measure --out run.json -- python train.py
    """
    from wattree.report.measure_text import show_measured
    from wattree.trace import run_as_json, write_run

    done = _measured(request)
    if request.out is not None:
        write_run(done.run, request.out)
    totals = {
        # Nothing that was read is no energy of zero.
        "energy_j": done.run.energy_j if done.run.meters else None,
        "average_power_w": done.run.average_w if done.run.meters else None,
        "peak_power_w": done.peak_w,
    }
    deliver(
        lambda: {**run_as_json(done.run), **totals},
        request.json_path,
        lambda console: show_measured(done.run, done.peak_w, console),
    )
    if done.interrupted:
        tell("wattree: interrupted")
    if done.needs_s and not done.code:
        name = "--repeat-for" if request.command else "--seconds"
        tell(f"wattree: too short for a sensor; {name} {done.needs_s:.2g} is long enough")
    if not done.code and not done.run.meters:
        raise typer.Exit(2)
    raise typer.Exit(done.code)


def _measured(request: MeasureRequest) -> Measured:
    """Run the command or activity to be measured."""
    from wattree.measure import MeterOptions, RunLabels, measure_command, measure_idle
    from wattree.trace import Activity, Work, write_run

    every: dict[str, Any] = {
        "meters": request.meter or (),
        "options": MeterOptions(
            csv=None if request.csv is None else str(request.csv),
            csv_shift_s=request.csv_shift,
            replay=None if request.replay is None else str(request.replay),
            devices=_visible_devices(),
            tdp_w=quantity_option("--tdp", request.tdp, "w"),
        ),
        "interval_s": request.interval_s,
    }
    name = "" if request.out is None else request.out.name.partition(".")[0]
    if not request.command:
        assert request.seconds is not None
        return measure_idle(request.seconds, **every, node=request.node, name=name or "idle")
    labels = RunLabels(
        name=name,
        activity=Activity(request.activity),
        node=request.node,
        model=request.model,
        iterations=request.iterations or 0,
        ranks=request.ranks,
        work=Work(**request.given_work()),
    )
    return measure_command(
        request.command,
        labels,
        **every,
        repeat=request.repeat,
        repeat_for_s=request.repeat_for,
        # Standard output is for the JSON alone if that was asked for.
        stdout=sys.stderr if str(request.json_path) == "-" else None,
        save=None if request.out is None else partial(write_run, path=request.out),
    )


def _visible_devices() -> tuple[str, ...] | None:
    """Return the accelerators that the command will see; None for all."""
    found = os.environ.get("CUDA_VISIBLE_DEVICES")
    if found is None or "MIG" in found:  # a part of a device has no meter; the device has
        return None
    return tuple(name.strip() for name in found.split(",") if name.strip() not in {"", "-1"})
