"""Measure a command, or the idle machine, and make a `Run` of it."""

from __future__ import annotations

import contextlib
import platform
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from wattree.errors import WattreeError
from wattree.measure.command import CommandEnd, run_command
from wattree.measure.discovery import find_meters
from wattree.measure.meter import MeterOptions
from wattree.measure.window import Window, WindowReading, origin_of
from wattree.trace import Activity, Run, Work

#: How often a run is kept while it lasts [s]; in long runs after a share of what it lasted.
_SAVE_EVERY_S, _SAVE_SHARE = 10.0, 0.05
_UNENDED = (
    "the command had not ended: what measured it was killed, or is still at it; the energy up to "
    "then"
)
#: Share busy of a component above which a machine is not idle: the readings and what a system
#: does by itself take a few percent of a processor.
_IDLE_SHARE = 0.1
#: A window that is to be long enough, over what the sensor was seen to need.
_SPARE = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measured run, with data that a run file does not contain.

    Attributes:
        peak_w: Highest average over a second by domain. [W]
        needs_s: How long the window must be for every sensor to say enough; 0 if it was. [s]
        code: Exit code of the command.
    """

    run: Run
    peak_w: dict[str, float] = field(default_factory=dict)
    needs_s: float = 0.0
    code: int = 0
    interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLabels:
    """What is known of a command that is measured, for its run.

    Attributes:
        name: Of the run; that of the program if empty.
        activity: What it does, for fits.
        node: Kind of the node; its processor's name if empty.
        iterations: Steps that it does each time it runs.
        ranks: Processes that train together; None where no one says.
        work: Of one step, all processes together.
    """

    name: str = ""
    activity: Activity = Activity.TRAINING
    node: str = ""
    model: str = ""
    iterations: int = 0
    ranks: int | None = None
    work: Work = field(default_factory=Work)


def measure_command(
    command: Sequence[str],
    labels: RunLabels | None = None,
    *,
    meters: Sequence[str] = (),
    options: MeterOptions | None = None,
    interval_s: float = 0.1,
    repeat: int = 1,
    repeat_for_s: float = 0.0,
    stdout: IO[str] | None = None,
    save: Callable[[Run], None] | None = None,
    save_every_s: float = _SAVE_EVERY_S,
) -> Measured:
    """Return the energy that a command used, whether it succeeds, fails or is interrupted.

    Args:
        meters: Kinds of meters; none for all that the machine has.
        options: What a user says about them.
        interval_s: Time between two readings. [s]
        repeat: How often it runs, one after the other, in one window; up to its first failure.
        repeat_for_s: It runs again until so much time is over. [s]
        stdout: Where the command's output goes; None for that of this process.
        save: Called every so often with the run up to then, so that something is left where this
            process is killed.
        save_every_s: How often; in long runs more seldom. [s]

    Raises:
        RunError: The command cannot be started.
        MeterError: Nothing can be read.
        UnknownNameError: There is no such kind of meters.
    """
    found = find_meters(meters, options)
    ends: list[CommandEnd] = []

    def run_of(reading: WindowReading, exit_code: int | None, notes: Sequence[str]) -> Run:
        run = _labeled(labels or RunLabels(), command, times=len(ends))
        return run(window, reading, exit_code=exit_code, notes=notes)

    def save_partial(reading: WindowReading) -> None:
        if save is not None:
            save(run_of(reading, None, [_UNENDED]))

    watch = None if save is None else _every(save_every_s, lambda: window, save_partial)
    window = Window(found.meters, interval_s=interval_s, missing=found.missing, watch=watch)
    window.start()
    try:
        while not ends or (
            ends[-1] == CommandEnd(0)
            and (len(ends) < repeat or time.monotonic() - window.started_s < repeat_for_s)
        ):
            ends.append(run_command(command, stdout=stdout))
    finally:
        window.stop()
    return _measured(window.between(), ends, run_of)


def _labeled(labels: RunLabels, command: Sequence[str], *, times: int) -> Callable[..., Run]:
    """Return `run_of_reading` with the labels of a command that ran so many times."""
    return partial(
        run_of_reading,
        name=labels.name or Path(command[0]).name,
        activity=labels.activity,
        node=labels.node,
        model=labels.model,
        iterations=labels.iterations * times,
        ranks_per_node=labels.ranks,
        work=labels.work,
        command=tuple(command),
    )


def _measured(
    reading: WindowReading,
    ends: Sequence[CommandEnd],
    run_of: Callable[[WindowReading, int | None, Sequence[str]], Run],
) -> Measured:
    """Return the measurement of a command with one entry in `ends` per run."""
    ended, is_interrupted = ends[-1], ends[-1].interrupted_by is not None
    notes = [f"the command ran {len(ends)} times"] if len(ends) > 1 else []
    if is_interrupted:
        notes.append("interrupted: the energy up to then")
    return Measured(
        run=run_of(reading, None if is_interrupted else ended.code, notes),
        peak_w=reading.peak_w,
        needs_s=_needs_s(reading),
        code=ended.code if ended.interrupted_by is None else 128 + ended.interrupted_by,
        interrupted=is_interrupted,
    )


def measure_idle(
    seconds: float,
    *,
    meters: Sequence[str] = (),
    options: MeterOptions | None = None,
    interval_s: float = 0.1,
    node: str = "",
    name: str = "idle",
) -> Measured:
    """Return the power of the idle machine, the base of every fit.

    Args:
        seconds: For how long. [s]
        meters: Kinds of meters; none for all that the machine has.
        options: What a user says about them.
        interval_s: Time between two readings. [s]
        node: Kind of the node; its processor's name if empty.

    Raises:
        MeterError: Nothing can be read.
        UnknownNameError: There is no such kind of meters.
    """
    found = find_meters(meters, options)
    window = Window(found.meters, interval_s=interval_s, missing=found.missing)
    end = CommandEnd(0)
    window.start()
    try:
        time.sleep(seconds)
    except KeyboardInterrupt:
        end = CommandEnd(0, interrupted_by=signal.SIGINT)
    finally:
        window.stop()
    run = partial(run_of_reading, window, name=name, activity=Activity.IDLE, node=node)
    return _measured(
        window.between(),
        [end],
        lambda reading, code, notes: run(
            reading, exit_code=code, notes=[*notes, *_not_idle(reading.utilization)]
        ),
    )


def _not_idle(utilization: Mapping[str, float]) -> Iterator[str]:
    """Yield that other programs ran while the machine was to be idle."""
    busy = [f"{name} {share:.0%}" for name, share in sorted(utilization.items())]
    if max(utilization.values(), default=0.0) > _IDLE_SHARE:
        yield (
            f"the machine was not idle (busy: {', '.join(busy)}): this is no power at rest; stop "
            "what runs on it and measure again"
        )


def _every(
    every_s: float, window: Callable[[], Window], act: Callable[[WindowReading], None]
) -> Callable[[], None]:
    """Return a function to call often; it passes on the readings at most every `every_s`."""
    next_s = time.monotonic() + every_s

    def watch() -> None:
        nonlocal next_s
        now_s = time.monotonic()
        if now_s < next_s:
            return
        next_s = now_s + max(every_s, _SAVE_SHARE * (now_s - window().started_s))
        with contextlib.suppress(
            WattreeError
        ):  # it is written again at the end, which reports errors
            act(window().between(end_s=now_s))

    return watch


def _needs_s(reading: WindowReading) -> float:
    return _SPARE * reading.needs_s if reading.needs_s > reading.wall_s else 0.0


def run_of_reading(
    window: Window, reading: WindowReading, *, node: str, notes: Sequence[str] = (), **labels: Any
) -> Run:
    """Return the readings of a window as a run.

    Args:
        window: That read it.
        reading: What it read.
        node: Kind of the node; its processor's name if empty.
        notes: What else is to be known, behind which domains are estimated.
    """
    estimated = [found.domain for found in reading.meters if found.is_estimate]
    marked = [f"estimated, not read: {', '.join(estimated)}"] if estimated else []
    return Run(
        origin=origin_of(reading.meters),
        node=node or node_title(window),
        devices_per_node=len(accelerators(window)),
        wall_s=reading.wall_s,
        meters=reading.meters,
        missing=reading.missing,
        power=reading.power,
        utilization=reading.utilization,
        rated_w=reading.rated_w,
        notes=(*marked, *notes, *reading.notes),
        **labels,
    )


def accelerators(window: Window) -> list[str]:
    """Return the names of the accelerators that are read."""
    return [domain.title or domain.name for domain in window.domains if domain.name[:3] == "gpu"]


def node_title(window: Window) -> str:
    """Return a description of the node: its processor and accelerators."""
    titles = accelerators(window)
    kinds = [f"{titles.count(title)} × {title}" for title in dict.fromkeys(titles)]
    return ", ".join([_processor(), *kinds])


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except (OSError, ValueError):
        pass
    return platform.processor() or platform.machine()
