"""Jobs of several processes on a device, started as users do."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.runtime.fake_nvidia import CONNECT
from wattree.process import Process, is_alive, process_of
from wattree.runtime.colocation.processes import marked
from wattree.runtime.colocation.state import JobState, state_root, states_in

__all__ = [
    "LIMIT_S",
    "RANK",
    "ROOT",
    "all_gone",
    "launched",
    "processes_of_job",
    "ranks_of",
    "state_of",
]
#: A job ends within so long of whatever was killed, on any machine: less than the 60 s for which a
#: launcher waits for ranks that are asked to stop, and than ranks sleep. [s]
LIMIT_S = 50.0
ROOT = Path(__file__).resolve().parents[2]

#: A rank that does steps for ever: with a helper, and one in a session of its own.
RANK = f"""
{CONNECT}
import subprocess, sys, time
sleep = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
helpers = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
step = 0
while True:
    step += 1
    pathlib.Path(os.environ["PLACE"], "rank" + os.environ["RANK"]).write_text(f"{{os.getpid()}}.")
    time.sleep(0.01)
"""


def launched(home: Mapping[str, str], *options: str, program: str = RANK) -> subprocess.Popen[str]:
    """Start a launcher."""
    command = [sys.executable, "-m", "wattree", "launch", *options]
    return subprocess.Popen(
        [*command, "--", sys.executable, "-S", "-c", program],
        env=dict(home),
        stderr=subprocess.PIPE,
        text=True,
    )


def ranks_of(launcher: subprocess.Popen[str], home: Mapping[str, str], count: int) -> list[int]:
    """Wait until ranks do steps and their launcher looks after them; return their numbers."""
    until_s = time.monotonic() + 600
    found: dict[int, int] = {}
    noted: set[int] = set()
    while len(found) < count or not noted.issuperset(found.values()):
        assert time.monotonic() < until_s
        if launcher.poll() is not None:
            raise AssertionError(launcher.communicate()[1])
        for rank in range(count):
            path = Path(home["PLACE"], f"rank{rank}")
            notes = path.read_text() if path.exists() else ""
            if notes.endswith("."):  # else it is being written
                found[rank] = int(notes[:-1])
        # It notes them when it hears signals and watches ranks, which may be slower than they are.
        states = states_in(state_root(home))
        noted = {each.process.pid for state in states for each in state.recorded()}
        time.sleep(0.01)
    return [found[rank] for rank in range(count)]


def state_of(home: Mapping[str, str]) -> JobState:
    """Return the state of the only job."""
    (state,) = states_in(state_root(home))
    return state


def processes_of_job(state: JobState, launcher: int) -> list[Process]:
    """Return all processes of a job, its launcher first."""
    mine = process_of(launcher)
    assert mine is not None
    return [mine, *(each.process for each in state.recorded()), *marked("WATTREE_JOB", state.token)]


def all_gone(processes: list[Process], state: JobState, since_s: float) -> bool:
    """Wait until nothing is left; return whether that was in time."""
    while time.monotonic() - since_s < LIMIT_S:
        left = any(map(is_alive, processes)) or state.folder.exists()
        if not left:
            return True
        time.sleep(0.02)
    return False
