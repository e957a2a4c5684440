"""However processes on a device end, what they share with other jobs is left as it should be."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runtime.colocated_jobs import (
    LIMIT_S,
    RANK,
    all_gone,
    launched,
    processes_of_job,
    ranks_of,
    state_of,
)
from wattree.process import is_alive
from wattree.runtime.colocation.environment import PARENT
from wattree.runtime.colocation.processes import end
from wattree.runtime.colocation.state import state_root, states_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

#: Makes a program take no notice when it is asked to stop.
IGNORE = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"

#: Makes a program write where ranks meet, and end well on request.
RANK_UNTIL = """
import os, pathlib, threading, time
_place = pathlib.Path(os.environ["PLACE"])
(_place / ("port" + os.environ["RANK"])).write_text(os.environ["MASTER_PORT"])
def _until():
    while not (_place / "end").exists():
        time.sleep(0.01)
    os._exit(0)
threading.Thread(target=_until, daemon=True).start()
"""


def test_a_folder_that_was_emptied_under_a_job_changes_nothing(home: dict[str, str]) -> None:
    """Temporary folders are, after some days: the launcher is killed, and nothing is left."""
    launcher = launched(home, "-q", "2", "--device", "cpu")
    ranks_of(launcher, home, 2)
    state = state_of(home)
    everything = processes_of_job(state, launcher.pid)
    state.remove()
    since_s = time.monotonic()
    launcher.kill()
    launcher.communicate(timeout=LIMIT_S)
    assert all_gone(everything, state, since_s)


def test_a_run_that_is_asked_to_stop_leaves_nothing(home: dict[str, str]) -> None:
    """Ctrl-C, or the batch system."""
    launcher = launched(home, "-q", "2", "--device", "cpu")
    ranks_of(launcher, home, 2)
    state = state_of(home)
    everything = processes_of_job(state, launcher.pid)
    since_s = time.monotonic()
    launcher.send_signal(signal.SIGTERM)
    _, notes = launcher.communicate(timeout=LIMIT_S)
    assert launcher.returncode == 130
    assert notes.strip().endswith("wattree: interrupted")
    assert all_gone(everything, state, since_s)


def test_who_waits_for_processes_is_told_and_may_end_them(home: dict[str, str]) -> None:
    """A script that ignores the signal: the first one says for what it waits, a second ends it."""
    launcher = launched(home, "-q", "2", "--device", "cpu", program=f"{IGNORE}{RANK}")
    ranks_of(launcher, home, 2)
    state = state_of(home)
    everything = processes_of_job(state, launcher.pid)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.stderr is not None
    lines = iter(launcher.stderr.readline, "")
    as_dict = next(line for line in lines if "asked to stop" in line)  # said while it waits
    assert as_dict == (
        "wattree: asked to stop: waits up to 60 s for 2 process(es) to end by themselves; a second "
        "signal (Ctrl-C) ends them now\n"
    )
    assert all(map(is_alive, everything))
    since_s = time.monotonic()
    launcher.send_signal(signal.SIGINT)
    _, notes = launcher.communicate(timeout=LIMIT_S)
    assert launcher.returncode == 130
    assert notes == "wattree: interrupted\n"
    assert all_gone(everything, state, since_s)
    assert time.monotonic() - since_s < LIMIT_S


def test_two_jobs_at_once_share_nothing(home: dict[str, str], tmp_path: Path) -> None:
    """One is killed and cleared away; the other does not notice, and goes on to its end."""
    jobs = []
    for name in ("killed", "whole"):
        place = tmp_path / name
        place.mkdir()
        as_dict = home | {"PLACE": str(place)}
        program = f"{RANK_UNTIL}{RANK}"
        jobs.append((launched(as_dict, "-q", "2", "--device", "cpu", program=program), as_dict))
    for launcher, as_dict in jobs:
        ranks_of(launcher, as_dict, 2)
    (killed, of_killed), (whole, of_whole) = jobs
    state_of = {state.launcher.pid: state for state in states_in(state_root(home))}
    left = processes_of_job(state_of[whole.pid], whole.pid)
    ended = processes_of_job(state_of[killed.pid], killed.pid)
    ports = [Path(as_dict["PLACE"], "port0").read_text() for as_dict in (of_killed, of_whole)]
    assert len(set(ports)) == 2
    since_s = time.monotonic()
    killed.kill()
    killed.communicate(timeout=LIMIT_S)
    assert all_gone(ended, state_of[killed.pid], since_s)
    assert all(map(is_alive, left))
    since_s = time.monotonic()
    Path(of_whole["PLACE"], "end").touch()
    _, notes = whole.communicate(timeout=LIMIT_S)
    assert whole.returncode == 0, notes
    assert "earlier run" not in notes
    assert all_gone(left, state_of[whole.pid], since_s)


def test_a_launcher_ends_with_the_process_that_it_was_told(home: dict[str, str]) -> None:
    """A benchmark that is ended leaves no job behind, which no one would look for."""
    starter = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
    launcher = launched(home | {PARENT: str(starter.pid)}, "-q", "2", "--device", "cpu")
    ranks_of(launcher, home, 2)
    state = state_of(home)
    everything = processes_of_job(state, launcher.pid)
    since_s = time.monotonic()
    starter.kill()
    starter.wait()
    _, notes = launcher.communicate(timeout=LIMIT_S)
    assert launcher.returncode == 1
    assert f"process {starter.pid} (WATTREE_PARENT) is gone, which started this" in notes
    assert all_gone(everything, state, since_s)


def test_a_rank_of_torchrun_ends_with_torchrun(home: dict[str, str]) -> None:
    """Killed, it can end no one; a command of a shell goes on without the shell."""
    program = [sys.executable, "-m", "wattree", "launch", "-q", "2", "--device", "cpu", "--"]
    program += [sys.executable, "-S", "-c", RANK]
    code = "import subprocess, sys; sys.exit(subprocess.Popen(sys.argv[1:]).wait())"
    outer = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    outer |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29876"}
    for as_dict, ends in ((outer, True), ({}, False)):
        starter = subprocess.Popen(
            [sys.executable, "-S", "-c", code, *program],
            env=home | as_dict,
            stderr=subprocess.DEVNULL,
        )
        ranks_of(starter, home, 2)
        state = state_of(home)
        everything = processes_of_job(state, state.launcher.pid)
        since_s = time.monotonic()
        starter.kill()
        starter.wait()
        if not ends:
            time.sleep(1.0)
            assert all(map(is_alive, everything))
            end([state.launcher])
            since_s = time.monotonic()
        assert all_gone(everything, state, since_s)
        for path in Path(home["PLACE"]).glob("rank*"):
            path.unlink()
