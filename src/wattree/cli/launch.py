"""`wattree launch`: any training script as several processes on each device."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattree.cli.output import quantity_option, tell
from wattree.cli.request import argument, asked, choice, option, request_command
from wattree.errors import RunError
from wattree.units import whole_number

if TYPE_CHECKING:
    from wattree.runtime.launch import Finished
    from wattree.runtime.launch.options import LaunchOptions

#: What is said in place of a number for the one that trials find.
AUTO = "auto"


class LaunchDevice(StrEnum):
    """Devices that processes share."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Reduce(StrEnum):
    """How gradients are averaged."""

    HIERARCHICAL = "hierarchical"
    FLAT = "flat"
    MPI = "mpi"


class BatchRule(StrEnum):
    """How the processes of a device divide the batch."""

    FIXED_GLOBAL = "fixed-global"
    FIXED_PER_PROCESS = "fixed-per-process"


WithMps = Annotated[
    bool,
    typer.Option(
        "--with-mps",
        help="Share accelerators by a private MPS daemon; an error if none can run.",
        show_default="where it is installed",
    ),
]
WithoutMps = Annotated[
    bool, typer.Option("--without-mps", help="Share accelerators by time slices.")
]
ThreadPercentage = Annotated[
    float | None,
    option(
        "P",
        "Most of a device's multiprocessors that a process may fill under MPS, in %.",
        default="all",
    ),
]
MemoryLimit = Annotated[
    str | None,
    option("SIZE", "Most device memory that a process may take under MPS.", default="no limit"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """Arguments and options of `wattree launch`."""

    command: list[str] = argument("CMD", "Command to run, after '--'; its exit code is passed on.")
    processes: str = asked(
        "Q",
        "Processes on each device; auto: as many as short trials of the script find best.",
        "--processes-per-device",
        "-q",
        value="1",
        shown=True,
    )
    device: LaunchDevice = choice(
        "What they share; auto: accelerators, or processors if there are none.",
        value=LaunchDevice.AUTO,
    )
    devices: int | None = asked(
        "N",
        "Accelerators of this host to use; on a processor, the shares to divide it into.",
        shown="all accelerators; 1 share of the processor",
    )
    reduce: Reduce = choice(
        "How DDP averages gradients: on each device first, or over all processes by gloo or MPI.",
        value=Reduce.HIERARCHICAL,
    )
    batch_rule: BatchRule = choice(
        "Whether the processes of a device divide its batch, or have one each and a "
        "learning rate scaled to it.",
        value=BatchRule.FIXED_GLOBAL,
    )
    with_mps: WithMps = False
    without_mps: WithoutMps = False
    thread_percentage: ThreadPercentage = None
    memory_limit: MemoryLimit = None
    memory_per_process: str | None = asked(
        "SIZE", "Device memory of one process; more processes than fit are rejected."
    )
    loader_workers: int | None = asked(
        "N", "Loader workers of a device, divided among its processes.", shown="those of the script"
    )
    pin: bool = choice("Keep processes to cores near their device.", "--pin/--no-pin", value=True)
    patch: bool = choice(
        "Give an unmodified DDP script the reduction and its share of batch and workers.",
        "--patch/--no-patch",
        value=True,
    )
    logs: Path | None = asked("DIR", "Write what each rank prints to files there.")
    timeout: str = asked(
        "TIME", "How long launchers wait for each other.", value="180 s", shown=True
    )

    def options(self) -> LaunchOptions:
        """Return how processes are started.

        Raises:
            WattreeError: A value cannot be.
        """
        from wattree.runtime.launch.options import LaunchOptions

        timeout_s = quantity_option("--timeout", self.timeout, "s")
        assert timeout_s is not None
        return LaunchOptions(
            processes=processes_option(self.processes) or 1,
            device=self.device.value,
            devices=self.devices,
            reduce=self.reduce.value,
            batch_rule=self.batch_rule.value,
            with_mps=mps_option(with_mps=self.with_mps, without_mps=self.without_mps),
            thread_percentage=self.thread_percentage,
            memory_limit_bytes=quantity_option("--memory-limit", self.memory_limit, "bytes"),
            memory_per_process_bytes=quantity_option(
                "--memory-per-process", self.memory_per_process, "bytes"
            ),
            loader_workers=self.loader_workers,
            pins=self.pin,
            patches=self.patch,
            logs=None if self.logs is None else self.logs.absolute(),
            timeout_s=timeout_s,
        )


@request_command
def launch(request: LaunchRequest) -> None:
    """Run a training script as several processes on each device.

    Started alone, it uses the devices of this host. Under torchrun, srun or mpirun each rank starts
    the processes of its device, or of its host if it is the only rank there. The processes see
    torchrun's variables. When the command ends, every process that it started ends too.

    Example: wattree launch --processes-per-device 2 -- python train.py
    """
    from wattree.runtime.launch.script import launch_script

    options = request.options()
    if processes_option(request.processes) is None:
        from wattree.cli.auto import tuned
        from wattree.runtime.tune.measured import TrialOptions

        options = tuned(lambda _: request.command, TrialOptions(launch=options))
    finish(launch_script(request.command, options, environment=os.environ, say=note))


def processes_option(text: str | None) -> int | None:
    """Return a number of processes; None for `auto` and by default.

    Raises:
        RunError: It is neither.
    """
    if text is None or text == AUTO:
        return None
    number = whole_number(text)
    if not number:
        raise RunError(
            "--processes-per-device", [f"found '{text:.40}', expected 1 or more, or auto"]
        )
    return number


def mps_option(*, with_mps: bool, without_mps: bool) -> bool | None:
    """Return whether processes are to share devices by MPS; None where nothing was set.

    Raises:
        RunError: Both options were given.
    """
    if with_mps and without_mps:
        raise RunError("--with-mps", ["found --without-mps as well, expected one of them"])
    return with_mps or (False if without_mps else None)


def note(line: str) -> None:
    """Print a line for the user that is no result."""
    tell(f"wattree: {line}")


def finish(finished: Finished) -> None:
    """Report the first failure, and exit with its code.

    Raises:
        Exit: Something did, or it was interrupted.
    """
    from wattree.runtime.launch import INTERRUPTED

    if finished.failure is not None:
        note(finished.failure.message)
    if finished.code == INTERRUPTED:
        note("interrupted")
    if finished.code:
        raise typer.Exit(finished.code)
