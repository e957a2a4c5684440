"""Starts and ends the processes of ranks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from wattree.errors import RunError
from wattree.runtime.colocation.processes import end, in_groups

#: `PR_SET_PDEATHSIG` of Linux' `prctl(2)`: the signal that a process gets when its parent ends.
_PARENT_DEATH_SIGNAL = 1
#: A process that was killed and does not go (the kernel waits for a device) is left to itself. [s]
_GONE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Settings of one process that differ from the others.

    Attributes:
        rank: Its number in the job.
        cores: Processor cores that it keeps to; empty for all.
        log: Beginning of the names of files for what it prints; None: it prints where its parent
            does.
    """

    rank: int
    variables: Mapping[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()
    log: Path | None = None


@dataclass(slots=True)
class Child:
    """A rank's process.

    Attributes:
        rank: Its number in the job.
        process: As it was started.
        was_ended: Whether this process ended it.
        gone_s: When its end was noticed, on the wall clock; None while it runs. [s]
    """

    rank: int
    process: subprocess.Popen[bytes]
    was_ended: bool = False
    gone_s: float | None = None

    def code(self) -> int | None:
        """Return its exit code; None while it runs, and if this launcher ended it."""
        code = self.process.poll()
        if code is not None and self.gone_s is None:
            self.gone_s = time.time()
        return None if self.was_ended else code


def started(
    command: Sequence[str],
    environment: Mapping[str, str],
    start: Start,
    *,
    keeps: Sequence[int] = (),
    is_quiet: bool = False,
) -> Child:
    """Start a process in its own session; Linux kills it when this process ends.

    Args:
        environment: Of the process; that of `start` is added.
        start: What it has of its own.
        keeps: Descriptors that stay open in it.
        is_quiet: Its standard output goes nowhere.

    Raises:
        OSError: It cannot be started.
        RunError: Its logs cannot be written.
    """
    with _outputs(start.log) as (out, errors):
        return Child(
            start.rank,
            subprocess.Popen(  # noqa: S603 - what the user named, or the program that runs now
                list(command),
                env={**environment, **start.variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if is_quiet else out,
                stderr=errors,
                start_new_session=True,
                pass_fds=tuple(keeps),
                # In the child, before the program: its first thread has them, and so all have.
                preexec_fn=_before(start.cores),  # noqa: PLW1509
            ),
        )


@contextlib.contextmanager
def _outputs(log: Path | None) -> Iterator[tuple[IO[bytes] | None, IO[bytes] | None]]:
    if log is None:
        yield None, None
        return
    names = (log.with_name(f"{log.name}.out"), log.with_name(f"{log.name}.err"))
    with contextlib.ExitStack() as stack:
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            out, errors = (stack.enter_context(name.open("wb")) for name in names)
        except OSError as error:
            raise RunError(
                str(log.parent), [f"cannot be written to ({error.strerror}); expected a folder"]
            ) from error
        yield out, errors


def _before(cores: tuple[int, ...]) -> Callable[[], None] | None:
    """Return the child's pre-exec function; None if there is nothing to do."""
    pins = bool(cores) and hasattr(os, "sched_setaffinity")
    mortal = sys.platform == "linux"
    if not pins and not mortal:
        return None
    # Loaded here: between fork and exec nothing may wait for a lock.
    library = ctypes.CDLL(None, use_errno=True) if mortal else None
    parent = os.getpid()

    def act() -> None:
        if pins:
            with contextlib.suppress(OSError):  # a core that went away since it was listed
                os.sched_setaffinity(0, cores)
        if library is not None:
            library.prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:  # it ended before it was asked
                os._exit(1)

    return act


def end_children(children: Sequence[Child]) -> None:
    """End running processes, with the helper processes in their groups."""
    running = [child for child in children if child.process.poll() is None]
    for child in running:
        child.was_ended = True
    if running:
        end(in_groups(child.process.pid for child in running))
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(_GONE_S)
