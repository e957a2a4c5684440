"""`wattree measure`: what a command uses on this machine."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattree.cli.output import JsonPath, check_outputs, deliver, quantity_option
from wattree.errors import JobError

if TYPE_CHECKING:
    from wattree.trace import Work

__all__ = ["measure"]

#: Sensors take readings so often at least, and a run of ten readings is to be short. [s]
_MOST_INTERVAL_S = 60.0


class What(StrEnum):
    """What a command does: each step of the fitting protocol isolates a part."""

    IDLE = "idle"
    LOADER = "loader"
    RESIDENT = "resident"
    COLLECTIVE = "collective"
    TRAINING = "training"


def _amount(what: str) -> Any:
    """Return the option of a kind of work."""
    return typer.Option(metavar="N", help=what, show_default=False)


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
    repeat_for: Annotated[
        float,
        typer.Option(metavar="S", help="Run the command again until so many seconds are over."),
    ] = 0.0,
    node: Annotated[
        str, typer.Option(metavar="NAME", help="Kind of this node.", show_default=False)
    ] = "",
    model: Annotated[
        str, typer.Option(metavar="NAME", help="What is trained.", show_default=False)
    ] = "",
    iterations: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Steps that one run of the command does. What follows is of one step, all its "
            "processes together.",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes that train together.", show_default=False),
    ] = None,
    samples: Annotated[float | None, _amount("Samples.")] = None,
    flop: Annotated[float | None, _amount("FLOP, forward and backward.")] = None,
    memory_bytes: Annotated[float | None, _amount("Bytes of device memory moved.")] = None,
    read_bytes: Annotated[float | None, _amount("Bytes read from storage.")] = None,
    core_seconds: Annotated[
        float | None, _amount("Core time of reading and preparing, in s.")
    ] = None,
    copied_bytes: Annotated[float | None, _amount("Bytes copied to devices.")] = None,
    network_bytes: Annotated[float | None, _amount("Bytes sent by all processes.")] = None,
    gradient_bytes: Annotated[float | None, _amount("Bytes that each process all-reduces.")] = None,
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
    from wattree.trace import Activity, Work, run_as_json, write_run

    words = tuple(command or ())
    work = Work(
        samples=samples,
        flop=flop,
        memory_bytes=memory_bytes,
        read_bytes=read_bytes,
        core_s=core_seconds,
        copied_bytes=copied_bytes,
        network_bytes=network_bytes,
        gradient_bytes=gradient_bytes,
    )
    _check(words, activity, seconds=seconds, repeat=repeat)
    _check_work(activity, work, iterations=iterations, ranks=ranks)
    _check_times(csv_shift, repeat_for, is_shifted=csv is not None)
    interval_s = quantity_option("--interval", interval, "s")
    assert interval_s is not None
    if interval_s > _MOST_INTERVAL_S:
        raise JobError(
            "--interval", [f"found '{interval}', expected at most {_MOST_INTERVAL_S:g} s"]
        )
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
            repeat_for_s=repeat_for,
            activity=Activity(activity),
            node=node,
            model=model,
            iterations=iterations or 0,
            ranks=ranks,
            work=work,
            name=name,
            # Standard output is for the JSON alone if that was asked for.
            stdout=sys.stderr if str(json_path) == "-" else None,
            keep=None if out is None else partial(write_run, path=out),
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
        # Nothing that was read is no energy of zero.
        "energy_j": done.run.energy_j if done.run.meters else None,
        "average_power_w": done.run.average_w if done.run.meters else None,
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
    if done.needs_s and not done.code:
        option = "--repeat-for" if words else "--seconds"
        typer.echo(
            f"wattree: too short for a sensor; {option} {done.needs_s:.2g} is long enough",
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
        what = "is missing" if seconds is None else f"found {seconds}"
        problems.append(f"--seconds: {what}, expected a length above 0, such as 60")
    if repeat < 1:
        problems.append(f"--repeat: found {repeat}, expected at least 1")
    if problems:
        raise JobError("wattree measure", problems)


def _check_times(csv_shift: float, repeat_for: float, *, is_shifted: bool) -> None:
    """Refuse seconds that are none, and a shift of nothing.

    Raises:
        JobError: One of these.
    """
    if not math.isfinite(csv_shift):
        raise JobError("--csv-shift", [f"found {csv_shift}, expected a number of seconds"])
    if csv_shift and not is_shifted:
        raise JobError("--csv-shift", [f"found {csv_shift} without --csv, whose times it shifts"])
    if not (math.isfinite(repeat_for) and repeat_for >= 0):
        raise JobError("--repeat-for", [f"found {repeat_for}, expected a number of seconds"])


def _check_work(activity: What, work: Work, *, iterations: int | None, ranks: int | None) -> None:
    """Refuse work that no step has, and isolated runs that no fit could use.

    Raises:
        JobError: One of these; everything that is wrong is listed.
    """
    given = {name: amount for name, amount in asdict(work).items() if amount is not None}
    names = {
        name: "--" + name.replace("core_s", "core_seconds").replace("_", "-") for name in given
    }
    problems = [
        f"{names[name]}: found {amount}, expected 0 or more"
        for name, amount in given.items()
        if not (math.isfinite(amount) and amount >= 0)
    ]
    counts = {"--iterations": iterations, "--ranks": ranks}
    problems += [
        f"{name}: found {count}, expected at least 1"
        for name, count in counts.items()
        if count is not None and count < 1
    ]
    if activity is What.IDLE and (given or iterations is not None):
        problems.append("--activity idle: found work, expected none: nothing runs while idle")
    elif iterations is None and given:
        problems.append(f"--iterations: is missing; {', '.join(names.values())} are of one step")
    elif iterations is None and activity not in {What.IDLE, What.TRAINING}:
        problems.append(
            f"--iterations: is missing, expected how many steps the command of '--activity "
            f"{activity}' does: fits go by steps; or label them with wattree.measure.Stages"
        )
    if problems:
        raise JobError("wattree measure", problems)


def _visible_devices() -> tuple[str, ...] | None:
    """Return the accelerators that the command will see; None for all."""
    found = os.environ.get("CUDA_VISIBLE_DEVICES")
    if found is None or "MIG" in found:  # a part of a device has no meter; the device has
        return None
    return tuple(name.strip() for name in found.split(",") if name.strip() not in {"", "-1"})
