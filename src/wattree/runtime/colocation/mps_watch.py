"""Monitors a job's MPS daemon and its clients while the job runs."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence

from wattree.runtime.colocation.mps import MpsControl
from wattree.runtime.colocation.processes import output_of

#: Between two looks at the daemon's list of clients, and at the driver's of processes. [s]
_CLIENTS_EVERY_S, _DRIVER_EVERY_S = 1.0, 10.0
#: A program that is no client by then may never be: it is looked at as rarely as the driver. [s]
_SOON_S = 60.0
_DRIVER_TIMEOUT_S = 5.0


class Clients:
    """Tracks whether the ranks of a job are clients of its daemon.

    Args:
        environment: Of `nvidia-smi`; `PATH` says where it is.
        clock: The monotonic clock.
    """

    def __init__(
        self,
        control: MpsControl,
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control, self._clock = control, clock
        self._environment = dict(environment)
        self._tool = shutil.which("nvidia-smi", path=environment.get("PATH"))
        self._ranks: dict[int, int] = {}
        self._connected: set[int] = set()
        self._begun_s = self._next_s = self._next_driver_s = clock()
        self._suspects: set[int] = set()

    def begin(self, ranks: Mapping[int, int]) -> None:
        """Set the ranks: process id → rank."""
        self._ranks = dict(ranks)
        self._begun_s = self._clock()
        self._next_driver_s = self._begun_s + _DRIVER_EVERY_S

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that were never clients."""
        return tuple(sorted(set(self._ranks.values()) - self._connected))

    def look(self) -> tuple[str, bool]:
        """Return the fault, empty if none, and whether all ranks have just become clients."""
        now_s = self._clock()
        if not self.missing or now_s < self._next_s:
            return "", False
        is_soon = now_s - self._begun_s < _SOON_S
        self._next_s = now_s + (_CLIENTS_EVERY_S if is_soon else _DRIVER_EVERY_S)
        self._connected |= self._of_ranks(self._control.clients())
        if not self.missing:
            return "", True
        if now_s < self._next_driver_s:
            return "", False
        self._next_driver_s = now_s + _DRIVER_EVERY_S
        without = self._of_ranks(self._at_work()) - self._connected
        found, self._suspects = (
            without & self._suspects,
            without,
        )  # seen twice: not about to connect
        if not found:
            return "", False
        ranks = ", ".join(map(str, sorted(found)))
        return (
            f"rank {ranks} uses its device without MPS: the program did not find the daemon",
            False,
        )

    def _of_ranks(self, processes: Sequence[int]) -> set[int]:
        """Return the ranks of processes: each rank leads a session."""
        found = set()
        for pid in processes:
            try:
                session = os.getsid(pid)
            except OSError:
                continue
            if session in self._ranks:
                found.add(self._ranks[session])
        return found

    def _at_work(self) -> list[int]:
        """Return the processes that the driver reports on devices."""
        if self._tool is None:
            return []
        query = [self._tool, "--query-compute-apps=pid", "--format=csv,noheader"]
        listed, _ = output_of(query, self._environment, timeout_s=_DRIVER_TIMEOUT_S)
        return [int(word) for word in listed.split() if word.isdigit()]
