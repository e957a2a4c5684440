"""Removes the remains of a job: its processes, its MPS daemon, its folder.

Only processes of the job are ended: those that its launcher noted, by number and start time, and
those that have the job's token in their environment.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from wattree.process import Process, is_alive
from wattree.runtime.colocation.environment import JOB
from wattree.runtime.colocation.processes import end, marked
from wattree.runtime.colocation.state import JobState, locked, remove_unfinished, states_in

#: What the process is called that clears up after its launcher.
KEEPER = "keeper"
#: A keeper whose launcher is gone is at work; it has so long. [s]
_KEEPER_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """The remains of a job that were found and removed.

    Attributes:
        ended: Processes that still ran.
    """

    state: JobState
    ended: tuple[Process, ...] = ()

    def summary(self) -> str:
        """Return a one-line summary."""
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.state.begun_s))
        numbers = ", ".join(str(process.pid) for process in self.ended)
        ended = f"ended {len(self.ended)} process(es) ({numbers})" if self.ended else ""
        what = " ".join(self.state.command)[:80]
        return (
            f"the launcher of an earlier run ({what}, begun {at}) was killed; "
            f"{ended or 'removed its folder'}"
        )


def clear(state: JobState, *, keeps: frozenset[int] = frozenset()) -> Cleared:
    """End the remaining processes of a job; keep its folder.

    Args:
        keeps: Numbers of processes to leave.
    """
    ended: list[Process] = []
    for _ in range(3):  # what was starting others while it was ended
        known = {recorded.process for recorded in state.recorded() if recorded.what != KEEPER}
        running = [
            process
            for process in known | set(marked(JOB, state.token))
            if process.pid not in keeps and is_alive(process)
        ]
        if not running:
            break
        ended += end(running)
    return Cleared(state=state, ended=tuple(ended))


def clear_orphans(root: Path) -> list[Cleared]:
    """Clean up after killed launchers, including their folders.

    Args:
        root: Folder of this user on this node.
    """
    found = []
    with locked(root):
        for state in states_in(root):
            if is_alive(state.launcher) or _keeper_ends_it(state):
                continue
            cleared = clear(state)
            state.remove()
            found.append(cleared)
        remove_unfinished(root)
    return found


def _keeper_ends_it(state: JobState) -> bool:
    """Wait for the keeper of a job, if it runs; return whether it cleaned up."""
    keepers = [each.process for each in state.recorded() if each.what == KEEPER]
    until_s = time.monotonic() + _KEEPER_S
    while any(map(is_alive, keepers)) and time.monotonic() < until_s:
        time.sleep(0.05)
    return not state.folder.exists()
