"""Ends a job whose MPS daemon is gone, or whose ranks run without it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from wattree.runtime.colocation.mps import MpsControl, MpsDaemon
from wattree.runtime.colocation.mps_watch import Clients
from wattree.runtime.launch.spawn import Failure

__all__ = ["DaemonWatch"]


class DaemonWatch:
    """Looks after a daemon and its clients while ranks run.

    Args:
        daemon: Of the node; None where another launcher looks after it.
        control: Asks the daemon.
        environment: Of the launcher.
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
        """Say which ranks there are: number of the process → rank."""
        self._ranks = len(ranks)
        self._clients.begin(ranks)

    def check(self) -> Failure | None:
        """Return what is wrong with the daemon, or with ranks that run without it."""
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
        """Say which ranks were never clients; the job is over."""
        self._clients.look()
        missing = self._clients.missing
        if missing:
            told = ", ".join(map(str, missing))
            self._say(f"warning: rank {told} was never a client of the MPS daemon")
