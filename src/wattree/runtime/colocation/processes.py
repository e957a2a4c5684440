"""Runs tools, finds and ends processes; a reused id is never taken for the original process.

On Linux a descriptor of the process is signaled, not a number.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from wattree.process import Process, is_alive, process_of

_PROC = Path("/proc")
#: Programs that tidy up after the processes that they serve once those are gone: shared memory
#: and semaphores of Python's and PyTorch's multiprocessing.
_TIDIES = ("multiprocessing.resource_tracker", "torch_shm_manager")
_LOOK_EVERY_S = 0.01


def marked(variable: str, value: str) -> list[Process]:
    """Return this user's processes that were started with `variable=value` in their environment.

    Children inherit it, whatever session they are in. Empty where the system has no `/proc`.
    """
    wanted = f"{variable}={value}".encode()
    found = []
    for folder in _PROC.glob("[0-9]*") if _PROC.is_dir() else ():
        try:
            if folder.stat().st_uid != os.getuid():
                continue
            words = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in words and (process := process_of(int(folder.name))) is not None:
            found.append(process)
    return [process for process in found if process.pid != os.getpid()]


def in_groups(groups: Iterable[int]) -> list[Process]:
    """Return the processes of process groups; without `/proc` those that lead them."""
    wanted = set(groups)
    numbers = list(wanted)
    if _PROC.is_dir():
        every = (int(folder.name) for folder in _PROC.glob("[0-9]*"))
        numbers = [pid for pid in every if _group_of(pid) in wanted]
    return [process for pid in numbers if (process := process_of(pid)) is not None]


def output_of(
    command: Sequence[str], environment: Mapping[str, str], *, timeout_s: float, given: str = ""
) -> tuple[str, str]:
    """Return the output of a tool, and why it failed; empty if it did not.

    Args:
        given: Its standard input.
    """
    try:
        done = subprocess.run(  # noqa: S603 - a tool of the driver
            list(command),
            input=given,
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{type(error).__name__}: {error}"
    output = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return done.stdout, "" if done.returncode == 0 else (output[0] if output else "it failed")


def words_of(pid: int) -> tuple[str, ...]:
    """Return the command line of a process; empty if it cannot be read."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(os.fsdecode(word) for word in raw.split(b"\0") if word)


def end(processes: Iterable[Process], *, within_s: float = 2.0) -> list[Process]:
    """End processes that are still the original ones; return those that were ended.

    What tidies up after the others is given `within_s` to do so.

    Args:
        within_s: Time until all are gone; what is left then is ended all the same. [s]
    """
    running = [process for process in processes if is_alive(process)]
    tidy = [process for process in running if _tidies(process)]
    ended = [process for process in running if process not in tidy]
    for process in ended:
        _kill(process)
    until_s = time.monotonic() + within_s
    _gone(ended, until_s)
    for process in _gone(tidy, until_s):
        _kill(process)
    return ended


def _gone(processes: Sequence[Process], until_s: float) -> list[Process]:
    """Wait until processes have ended; return those that do not in time."""
    left = list(processes)
    while left and time.monotonic() < until_s:
        left = [process for process in left if is_alive(process)]
        time.sleep(_LOOK_EVERY_S if left else 0.0)
    return left


def _tidies(process: Process) -> bool:
    command = " ".join(words_of(process.pid))
    return any(name in command for name in _TIDIES)


def _kill(process: Process) -> None:
    with contextlib.suppress(OSError):
        if not hasattr(os, "pidfd_open"):
            if is_alive(process):
                os.kill(process.pid, signal.SIGKILL)
            return
        descriptor = os.pidfd_open(process.pid)
        try:
            # The descriptor stays with one process: what it was opened for is looked at after.
            if is_alive(process):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return -1
