"""Processes by number and start time, so that reused numbers are distinguished.

Linux: `/proc/PID/stat` says when a process started. Elsewhere `ps` says it, to the second.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """A process, distinguished from a later one of the same number.

    Attributes:
        pid: Its number.
        start: When it started, as the system writes it.
    """

    pid: int
    start: str


def process_of(pid: int) -> Process | None:
    """Return the running process with a number; None if there is none, or it has ended."""
    start = _start_of(pid)
    return None if start is None else Process(pid, start)


def this_process() -> Process:
    """Return this process."""
    found = process_of(os.getpid())
    assert found is not None
    return found


def is_alive(process: Process) -> bool:
    """Return whether a process still runs; one whose parent has yet to ask for its end does not."""
    return _start_of(process.pid) == process.start


def boot_id() -> str:
    """Return the identifier of this boot of the machine; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def host() -> str:
    """Return the name of this host, and a key that distinguishes hosts of that name."""
    return f"{socket.gethostname()} {boot_id()}"


def numbering() -> str:
    """Return what numbers of processes are unique in: a boot of a machine, and a name space."""
    try:
        return f"{boot_id()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


#: Takes the number of a signal.
SignalHandler = Callable[[int, FrameType | None], Any]


@contextmanager
def handled_signals(numbers: Iterable[int], handler: SignalHandler) -> Iterator[None]:
    """Have signals handled while the block runs, in the main thread alone: no other one may.

    Args:
        numbers: Of the signals.
        handler: Takes them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def processor_s(pid: int) -> float | None:
    """Return the processor time of a process; None if it has ended, or is not known. [s]"""
    fields = _fields_of(pid)
    if fields is None:
        return None
    user, system = fields[11:13]
    return (float(user) + float(system)) / os.sysconf("SC_CLK_TCK")


def _start_of(pid: int) -> str | None:
    if not _PROC.is_dir():
        return _start_by_ps(pid)
    fields = _fields_of(pid)
    return None if fields is None else fields[19]


def _fields_of(pid: int) -> list[str] | None:
    """Return what `/proc` says of a process from its state on; None if it has ended."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may hold anything; state follows it, the start is the 22nd field.
    fields = text.rpartition(")")[2].split()
    return None if len(fields) < 20 or fields[0] in {"Z", "X"} else fields


def _start_by_ps(pid: int) -> str | None:
    listed = subprocess.run(  # noqa: S603 - a number
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, start = listed.stdout.strip().partition(" ")
    return None if not start or state.startswith("Z") else start.strip()
