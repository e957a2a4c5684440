"""How soon a job ends whose processes are killed at random moments, and what it leaves behind.

A section for `benchmarks.colocation`. Where there is no accelerator there is no MPS daemon; ends by
its loss are tested with a stand-in (tests/runtime/test_colocation_faults.py).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.frame import Figure, Section
from wattree.runtime.colocation.environment import PARENT
from wattree.runtime.colocation.processes import is_alive, marked
from wattree.runtime.colocation.state import JobState, state_root, states_in

#: Within which a job ends, by the issue of this part. [s]
_MOST_S = 10.0
_PROCESSES, _KILLS = 3, 4
_SCRIPT = Path(__file__).parent / "colocation_job.py"
_START_S = 60.0


def faults(kills: int = _KILLS) -> Section | None:
    """Return how long after a kill nothing of a job is left; None where there is no `/proc`.

    Args:
        kills: For each kind of victim.
    """
    if sys.platform != "linux":
        return None
    figures = []
    for victim in ("a rank", "the leader", "the launcher"):
        moment = random.Random(victim)
        found = [_killed(victim, moment) for _ in range(kills)]
        longest = max(seconds for seconds, _ in found)
        told = all(message for _, message in found) or victim == "the launcher"
        figures.append(
            Figure(
                f"kill -9 of {victim}, {kills} times at random moments",
                f"nothing left in {_MOST_S:.0f} s, and why",
                f"nothing left after {longest:.2f} s at most"
                + ("" if victim == "the launcher" else f": {found[0][1]}"),
                longest <= _MOST_S and told,
            )
        )
    notes = (f"{_PROCESSES} processes of a DDP script; processes and segments of /dev/shm.",)
    return Section(title="Kills", figures=tuple(figures), notes=notes)


def _killed(victim: str, moment: random.Random) -> tuple[float, str]:
    """Return the time from a kill to the end of all [s], and what the launcher said."""
    with tempfile.TemporaryDirectory() as base:
        environment = os.environ | {"XDG_RUNTIME_DIR": base, "OMP_NUM_THREADS": "1"}
        environment[PARENT] = str(os.getpid())  # no launcher goes on when this is ended
        launcher = subprocess.Popen(
            [
                *(sys.executable, "-m", "wattree", "launch", "-q", str(_PROCESSES)),
                *("--device", "cpu", "--logs", str(Path(base) / "logs")),
                *("--", sys.executable, str(_SCRIPT), "--batch", "12"),
            ],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        state, ranks = _at_work(environment, Path(base) / "logs")
        time.sleep(moment.uniform(0.0, 4.0))  # from the start of ranks to many steps
        numbers = {"a rank": ranks[moment.randrange(1, _PROCESSES)], "the leader": ranks[0]}
        since_s = time.monotonic()
        os.kill(numbers.get(victim, launcher.pid), signal.SIGKILL)
        while _left(state) and time.monotonic() - since_s < 3 * _MOST_S:
            time.sleep(0.02)
        errors = launcher.communicate(timeout=_START_S)[1]
        seconds = time.monotonic() - since_s
        killed = [line for line in errors.splitlines() if "was killed" in line]
        return seconds, killed[-1].removeprefix("wattree: ")[:80] if killed else ""


def _at_work(environment: dict[str, str], logs: Path) -> tuple[JobState, list[int]]:
    """Wait until torch is loaded in the first rank; return the job and the ranks' numbers."""
    until_s = time.monotonic() + _START_S
    while time.monotonic() < until_s:
        for state in states_in(state_root(environment)):
            ranks = dict(_ranks(state))
            told = logs / "rank0.err"
            if len(ranks) == _PROCESSES and told.is_file() and told.stat().st_size:
                return state, [ranks[rank] for rank in range(_PROCESSES)]
        time.sleep(0.05)
    raise TimeoutError("the ranks did not come to work")


def _ranks(state: JobState) -> Iterator[tuple[int, int]]:
    for each in state.recorded():
        kind, _, number = each.what.partition(" ")
        if kind == "rank":
            yield int(number), each.process.pid


def _left(state: JobState) -> bool:
    alive = any(is_alive(each.process) for each in state.recorded())
    return alive or bool(marked("WATTREE_JOB", state.token)) or bool(state.segments())
