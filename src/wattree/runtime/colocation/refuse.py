"""Rejects numbers of processes that devices, MPS or memory do not support, with advice."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from wattree.errors import RunError
from wattree.runtime.colocation.devices import NodeDevice, clients_limit
from wattree.runtime.colocation.processes import words_of
from wattree.runtime.colocation.state import states_in
from wattree.units import format_bytes

_SOURCE = "--processes-per-device"
#: The name by which the kernel knows both: fifteen characters of it.
_COMMAND = "nvidia-cuda-mps"
_PROGRAMS = {"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}
#: Processes on a share of the processor for each of its cores. Past it they only wait for each
#: other, and a slip of the keyboard takes the host down; MPS takes no more than 60 of a device.
_PER_CORE = 32
#: MPS needs devices from here on.
_OLDEST = (3, 5)


def check_devices(
    devices: Sequence[NodeDevice], processes: int, *, cuda: tuple[int, int], with_mps: bool
) -> None:
    """Reject devices that do not support the number of processes.

    Args:
        processes: On each.
        cuda: Version that the driver knows.
        with_mps: Whether they share the device by MPS.

    Raises:
        RunError: Some do not; all of them.
    """
    problems = []
    for device in devices:
        name = f"device {device.index} ({device.name})"
        if device.is_divided:
            problems.append(
                f"{name} is divided into instances (MIG); expected whole devices: choose others by "
                f"CUDA_VISIBLE_DEVICES, or end the division (nvidia-smi -i {device.index} -mig 0, "
                "as root)"
            )
        if device.mode == "Prohibited":
            problems.append(
                f"{name} is in compute mode Prohibited, which takes no process; nvidia-smi -i "
                f"{device.index} -c DEFAULT (as root) ends it"
            )
        if processes > 1 and not with_mps and device.mode.startswith("Exclusive"):
            problems.append(
                f"{name} is in compute mode {device.mode}, which takes one process where there is "
                f"no MPS, not {processes}; run with MPS, or nvidia-smi -i {device.index} -c "
                "DEFAULT (as root)"
            )
        limit = clients_limit(device, cuda)
        if with_mps and device.capability < _OLDEST:
            problems.append(
                f"{name} has compute capability {'.'.join(map(str, device.capability))}, MPS needs "
                "3.5; --without-mps shares it by time slices"
            )
        elif with_mps and processes > limit:
            problems.append(
                f"{name} takes {limit} MPS clients, not {processes}; use {limit} or fewer"
            )
    if problems:
        raise RunError(_SOURCE, problems)


def check_processors(devices: Sequence[NodeDevice], processes: int) -> None:
    """Reject implausibly many processes for the cores of a host.

    Args:
        processes: On each.

    Raises:
        RunError: They are too many; how many are taken.
    """
    cores = set().union(*(device.cores for device in devices))
    most = _PER_CORE * max(len(cores), 1)
    found = processes * len(devices)
    if found > most:
        note = "" if len(devices) == 1 else f" on each of {len(devices)} shares of the processor"
        raise RunError(
            _SOURCE,
            [f"found {processes}{note}, expected at most {most} in all, {_PER_CORE} for each core"],
        )


def check_memory(devices: Sequence[NodeDevice], processes: int, per_process_bytes: float) -> None:
    """Reject more processes than fit in the memory of a device.

    Args:
        processes: On each.
        per_process_bytes: Memory of each, predicted or stated by the user. [B]

    Raises:
        RunError: There is room for fewer; how many.
    """
    problems = []
    for device in devices:
        possible = int(device.free_bytes // per_process_bytes)
        if possible >= processes:
            continue
        name = f"device {device.index} ({device.name})"
        fewer = f"use --processes-per-device {possible}, or" if possible else "use"
        problems.append(
            f"{name} has {format_bytes(device.free_bytes)} of memory free: room for "
            f"{possible} process(es) of {format_bytes(per_process_bytes)}, not for {processes}; "
            f"{fewer} a smaller batch"
        )
    if problems:
        raise RunError(_SOURCE, problems)


def foreign_daemons(root: Path, uuids: Sequence[str]) -> list[str]:
    """Return MPS daemons and servers on these devices that no launcher of this user started.

    One that another user started does not say which devices it has: it is counted. So is one whose
    devices are not named by UUID.

    Args:
        root: Folder of this user's jobs, whose daemons are known.
        uuids: Of the devices that the job is to have.
    """
    known = {each.process.pid for state in states_in(root) for each in state.recorded()}
    mine = set(uuids)
    found = []
    proc = Path("/proc")
    for folder in sorted(proc.glob("[0-9]*")) if proc.is_dir() else ():
        pid = int(folder.name)
        words = words_of(pid)
        if _name(folder) != _COMMAND:
            continue
        names = {Path(word).name for word in words[:3]} & _PROGRAMS
        # Without an option the control program is a user's, who asks a daemon something.
        is_daemon = "nvidia-cuda-mps-server" in names or {"-d", "-f"} & set(words)
        if not names or not is_daemon or pid in known:
            continue
        note = _environment(folder)
        theirs = set(filter(None, note.get("CUDA_VISIBLE_DEVICES", "").split(",")))
        if theirs and all(word.startswith("GPU-") for word in theirs) and not theirs & mine:
            continue
        pipes = note.get("CUDA_MPS_PIPE_DIRECTORY", "")
        found.append(f"{min(names)} (process {pid}{f', pipes in {pipes}' if pipes else ''})")
    return found


def _name(folder: Path) -> str:
    try:
        return (folder / "comm").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _environment(folder: Path) -> Mapping[str, str]:
    try:
        raw = (folder / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (os.fsdecode(word).partition("=") for word in raw.split(b"\0") if word)
    return {name: value for name, _, value in pairs}
