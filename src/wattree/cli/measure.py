"""`wattree measure`: what a command uses on this machine."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from wattree.cli.output import JsonPath, check_outputs, deliver, quantity_option
from wattree.errors import JobError

__all__ = ["measure"]


class What(StrEnum):
    """What a command does: each step of the fitting protocol isolates a part."""

    IDLE = "idle"
    LOADER = "loader"
    RESIDENT = "resident"
    COLLECTIVE = "collective"
    TRAINING = "training"


def measure(  # noqa: PLR0917 - typer passes options by name
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CMD",
            help="Command to run, after '--'; its exit code is passed on.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Write the run, for 'wattree energy'; also if the command fails.",
            show_default=False,
        ),
    ] = None,
    json_path: JsonPath = None,
    meter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Meter to read: nvml, amdsmi, apple, rapl, csv, replay, estimate; may be "
            "repeated. All that there are if none is named.",
            show_default=False,
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of the node's own meter: time,watts or time,joules.",
            show_default=False,
        ),
    ] = None,
    csv_shift: Annotated[
        float, typer.Option(metavar="S", help="Seconds by which that meter's clock is behind.")
    ] = 0.0,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Run whose power is played instead.", show_default=False),
    ] = None,
    interval: Annotated[
        str, typer.Option(metavar="TIME", help="Time between two readings.")
    ] = "100 ms",
    activity: Annotated[
        What, typer.Option(help="What the command does, for fits; idle runs none.")
    ] = What.TRAINING,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="S", help="Length of an idle run.", show_default=False),
    ] = None,
    repeat: Annotated[
        int, typer.Option(metavar="N", help="Run the command N times in one window.")
    ] = 1,
    node: Annotated[
        str, typer.Option(metavar="NAME", help="Kind of this node.", show_default=False)
    ] = "",
    model: Annotated[
        str, typer.Option(metavar="NAME", help="What is trained.", show_default=False)
    ] = "",
    tdp: Annotated[
        str | None,
        typer.Option(
            metavar="POWER",
            help="Rated power of all processors, for the estimate on machines without a meter.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a command and report the energy it uses, by device.

    Reads the counters of NVIDIA, AMD and Apple devices and of processors, and the CSV file of a
    node's own meter. What the machine has and nothing may read is named. Without any meter the
    energy is estimated from processor time, and marked so.

    Example: wattree measure --out run.json -- python train.py
    """
    from wattree.measure import MeterOptions, measure_command, measure_idle
    from wattree.trace import Activity, run_as_json, write_run

    words = tuple(command or ())
    _check(words, activity, seconds=seconds, repeat=repeat)
    interval_s = quantity_option("--interval", interval, "s")
    assert interval_s is not None
    check_outputs(out, json_path, source=csv or Path("-"))
    options = MeterOptions(
        csv=None if csv is None else str(csv),
        csv_shift_s=csv_shift,
        replay=None if replay is None else str(replay),
        devices=_visible_devices(),
        tdp_w=quantity_option("--tdp", tdp, "w"),
    )
    name = "" if out is None else out.name.partition(".")[0]
    if words:
        done = measure_command(
            words,
            meters=meter or (),
            options=options,
            interval_s=interval_s,
            repeat=repeat,
            activity=Activity(activity),
            node=node,
            model=model,
            name=name,
            # Standard output is for the JSON alone if that was asked for.
            stdout=sys.stderr if str(json_path) == "-" else None,
        )
    else:
        assert seconds is not None
        done = measure_idle(
            seconds,
            meters=meter or (),
            options=options,
            interval_s=interval_s,
            node=node,
            name=name or "idle",
        )
    if out is not None:
        write_run(done.run, out)
    totals = {
        "energy_j": done.run.energy_j,
        "average_power_w": done.run.average_w,
        "peak_power_w": done.peak_w,
    }
    from wattree.report.measure_text import show_measured

    deliver(
        {**run_as_json(done.run), **totals},
        json_path,
        lambda console: show_measured(done.run, done.peak_w, console),
    )
    if done.interrupted:
        typer.echo("wattree: interrupted", err=True)
    if done.repeats_needed > repeat and not done.code:
        typer.echo(
            f"wattree: too short for a sensor; --repeat {done.repeats_needed} runs the command "
            "often enough",
            err=True,
        )
    if not done.code and not done.run.meters:
        raise typer.Exit(2)
    raise typer.Exit(done.code)


def _check(words: tuple[str, ...], activity: What, *, seconds: float | None, repeat: int) -> None:
    """Refuse what contradicts itself.

    Raises:
        JobError: It does; everything that is wrong is listed.
    """
    problems = []
    if words and activity is What.IDLE:
        problems.append("--activity idle: found a command, expected none: nothing runs while idle")
    if words and seconds is not None:
        problems.append("--seconds: has a meaning for --activity idle alone")
    if not words and activity is not What.IDLE:
        problems.append(
            "found no command, expected: wattree measure -- CMD…, or --activity idle --seconds 60"
        )
    if not words and activity is What.IDLE and not (seconds and 0 < seconds < float("inf")):
        problems.append(f"--seconds: found {seconds}, expected a length above 0")
    if repeat < 1:
        problems.append(f"--repeat: found {repeat}, expected at least 1")
    if problems:
        raise JobError("wattree measure", problems)


def _visible_devices() -> tuple[str, ...] | None:
    """Return the accelerators that the command will see; None for all."""
    found = os.environ.get("CUDA_VISIBLE_DEVICES")
    if found is None or "MIG" in found:  # a part of a device has no meter; the device has
        return None
    return tuple(name.strip() for name in found.split(",") if name.strip() not in {"", "-1"})
