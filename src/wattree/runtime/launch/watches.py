"""Watches that end a job: MPS daemon lost, ranks running without it, or starter gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from wattree.errors import RunError
from wattree.process import is_alive, process_of
from wattree.runtime.colocation.environment import PARENT
from wattree.runtime.colocation.mps import MpsControl, MpsDaemon
from wattree.runtime.colocation.mps_watch import Clients
from wattree.runtime.launch.spawn import Failure

#: Who a job ends with is looked for this often. [s]
_LOOK_EVERY_S = 0.2


class DaemonWatch:
    """Monitors a daemon and its clients while ranks run.

    Args:
        daemon: Of the node; None where another launcher looks after it.
        say: Takes lines for the user.
    """

    def __init__(
        self,
        daemon: MpsDaemon | None,
        control: MpsControl,
        environment: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self._daemon, self._say = daemon, say
        self._clients = Clients(control, environment)
        self._ranks = 0

    def begin(self, ranks: Mapping[int, int]) -> None:
        """Set the ranks: process id → rank."""
        self._ranks = len(ranks)
        self._clients.begin(ranks)

    def check(self) -> Failure | None:
        """Return the problem of the daemon, or of ranks that run without it."""
        fault = "" if self._daemon is None else self._daemon.fault()
        if fault:
            message = f"{fault}; processes that shared a device by it cannot go on: start again"
            # Whatever ranks say of it, it came first.
            return Failure(rank=-1, code=1, message=message, at_s=0.0)
        wrong, all_there = self._clients.look()
        if all_there:
            self._say(f"all {self._ranks} processes here are clients of the MPS daemon")
        if wrong:
            return Failure(rank=-1, code=1, message=wrong, at_s=time.time())
        return None

    def end(self) -> None:
        """Report ranks that were never clients; the job is over."""
        self._clients.look()
        missing = self._clients.missing
        if missing:
            ranks = ", ".join(map(str, missing))
            self._say(f"warning: rank {ranks} was never a client of the MPS daemon")


class StarterWatch:
    """Ends a job with the process that started its launcher.

    Args:
        is_there: Says whether that process still runs.
        name: What the user knows it by.
    """

    def __init__(self, is_there: Callable[[], bool], name: str) -> None:
        self._is_there, self._name = is_there, name
        self._next_s = 0.0

    def check(self) -> Failure | None:
        """Return that it is gone."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return None
        self._next_s = now_s + _LOOK_EVERY_S
        if self._is_there():
            return None
        message = f"{self._name} is gone, which started this: all processes are ended"
        return Failure(rank=-1, code=1, message=message, at_s=time.time())


def starter_watch(environment: Mapping[str, str], outer: str | None) -> StarterWatch | None:
    """Return a watch for the process that a launcher ends with; None where it may outlive all.

    A rank of torchrun, srun or mpirun is nothing without them. A command of a shell goes on when
    the shell ends, as under nohup.

    Args:
        environment: Of the launcher, in which a program may have said with whom it ends.
        outer: Name of the launcher that started this one as a rank of its own; None without one.

    Raises:
        RunError: What the program said is no number of a process.
    """
    parent_id = environment.get(PARENT)
    if parent_id is not None:
        if not parent_id.isdecimal():
            raise RunError(PARENT, [f"found {parent_id!r}, expected the number of a process"])
        found = process_of(int(parent_id))
        return StarterWatch(
            lambda: found is not None and is_alive(found), f"process {parent_id} ({PARENT})"
        )
    if outer is None:
        return None
    parent = os.getppid()
    return StarterWatch(lambda: os.getppid() == parent, f"{outer} (process {parent})")
