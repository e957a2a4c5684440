"""`wattree train` with several processes on each device: options and launch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wattree.cli.launch import finish, note
from wattree.cli.output import quantity_option
from wattree.errors import RunError, WattreeError

if TYPE_CHECKING:
    from wattree.cli.train_request import TrainRequest
    from wattree.job import Job
    from wattree.runtime.recipe import Recipe


def share_asked(job: Job, processes: int | None, rule: str | None) -> tuple[int, str]:
    """Return processes per device and their batch rule, from options, else from the job.

    Raises:
        RunError: There is no such number.
    """
    from wattree.strategy import StrategyOptions

    options = job.strategy
    usual = (options if isinstance(options, StrategyOptions) else StrategyOptions()).colocation
    if processes is not None and processes < 1:
        raise RunError("--processes-per-device", [f"found {processes}, expected 1 or more"])
    return (
        usual.processes if processes is None else processes,
        usual.batch_rule if rule is None else rule,
    )


def say_of_mps(processes: int, *given: object) -> None:
    """Warn of MPS options where each device has one process: nothing is shared.

    Args:
        processes: On each device.
        given: What options say; None and False are nothing.
    """
    if processes == 1 and any(option not in {None, False} for option in given):
        note("warning: options of MPS have no effect with one process per device")


def device_of(request: TrainRequest, job: Job) -> str:
    """Return `cpu` or `cuda`: as requested, else from the job."""
    if request.device.value != "auto":
        return request.device.value
    return "cpu" if job.cluster.pools[0].node.device.kind == "cpu" else "cuda"


def launch_processes(
    request: TrainRequest,
    arguments: Sequence[str],
    plan: Job,
    recipe: Recipe,
    *,
    rule: str,
    launchers: int,
) -> None:
    """Run the processes of all devices, or of those of a launcher's rank.

    Args:
        request: How devices are shared.
        arguments: Of this command, which each process runs.
        launchers: How many commands like this one an outer launcher started.

    Raises:
        Exit: With the exit code of the processes, unless all went well.
    """
    from wattree.runtime.launch import own_command
    from wattree.runtime.launch.options import LaunchOptions
    from wattree.runtime.launch.script import launch_script

    device = device_of(request, plan)
    devices = recipe.options.dp // recipe.processes_per_device
    options = LaunchOptions(
        processes=recipe.processes_per_device,
        device=device,
        devices=max(devices // launchers, 1) if device == "cpu" or launchers == 1 else None,
        batch_rule=rule,
        with_mps=request.by_mps,
        thread_percentage=request.thread_percentage,
        memory_limit_bytes=quantity_option("--memory-limit", request.memory_limit, "bytes"),
        memory_per_process_bytes=_memory_bytes(plan) if device == "cuda" else None,
        patches=False,
        timeout_s=request.settings().timeout_s,
    )
    finish(launch_script(own_command(arguments), options, environment=os.environ, say=note))


def _memory_bytes(plan: Job) -> float | None:
    """Return what a process takes as predicted; None where the job cannot be predicted. [B]"""
    import wattree

    try:
        use = wattree.simulate(plan).result.colocation
    except WattreeError as error:
        note(f"the memory of a process is not known: the job cannot be simulated: {error}")
        return None
    return None if use is None else use.memory_bytes_per_process
