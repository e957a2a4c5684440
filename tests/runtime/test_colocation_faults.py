"""Whatever is killed, and whenever: a job ends soon, says why, and leaves nothing behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runtime.colocated_jobs import (
    LIMIT_S,
    all_gone,
    launched,
    processes_of_job,
    ranks_of,
    state_of,
)
from tests.runtime.fake_nvidia import CONNECT, DEVICE, install
from wattree.process import Process, is_alive
from wattree.runtime.colocation.clean import clear_orphans
from wattree.runtime.colocation.state import JobState, new_state, state_root

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("victim", ["rank", "leader", "launcher", "keeper and launcher"])
def test_a_job_ends_when_one_of_its_processes_is_killed(
    home: dict[str, str], victim: str, seed: int
) -> None:
    """At a random moment: within ten seconds nothing is left, and the message says what it was."""
    moment = random.Random(f"{victim} {seed}")
    launcher = launched(home, "-q", "3", "--device", "cpu")
    ranks = ranks_of(launcher, home, 3)
    time.sleep(moment.uniform(0.0, 0.3))
    state = state_of(home)
    everything = processes_of_job(state, launcher.pid)
    assert len(everything) >= 3 + 6 + 2
    rank = {"rank": moment.randrange(1, 3), "leader": 0}.get(victim)
    since_s = time.monotonic()
    if rank is not None:
        os.kill(ranks[rank], signal.SIGKILL)
    if "keeper" in victim:
        launcher.send_signal(signal.SIGSTOP)  # else it might clear up before it is killed
        os.kill(_keeper(state).pid, signal.SIGKILL)
    if "launcher" in victim:
        launcher.kill()
    launcher.wait(LIMIT_S)
    if "keeper" in victim:
        # No one is left to clear up: the ranks end all the same, the rest is the next one's.
        (cleared,) = clear_orphans(state_root(home))
        assert "was killed" in cleared.summary()
    _, notes = launcher.communicate(timeout=LIMIT_S)  # ends when no one can write to it
    assert all_gone(everything, state, since_s)
    if rank is not None:
        assert launcher.returncode == 1
        last = notes.strip().splitlines()[-1]
        assert last.startswith(f"wattree: rank {rank} was killed by signal 9 (SIGKILL)")


def test_a_launcher_killed_before_its_file_leaves_nothing_for_good(home: dict[str, str]) -> None:
    """The next one removes the folder; what it did not make stays."""
    root = state_root(home)
    running = new_state(root, ["true"])
    (root / "0123456789ab").mkdir()
    (root / "notes").mkdir()

    assert clear_orphans(root) == []
    assert {path.name for path in root.iterdir() if path.is_dir()} == {"notes", running.token}
    running.remove()


def _keeper(state: JobState) -> Process:
    return next(each.process for each in state.recorded() if each.what == "keeper")


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("victim", ["MPS daemon", "MPS server", "rank 1", "launcher"])
def test_a_job_that_shares_by_mps_ends_when_the_daemon_does(
    home: dict[str, str], tmp_path: Path, victim: str, seed: int
) -> None:
    """A stand-in for it. Clients that are killed, and a launcher that is, take it with them."""
    moment = random.Random(f"{victim} {seed}")
    as_dict = {**home, **install(tmp_path / "bin")}
    launcher = launched(as_dict, "-q", "2")
    ranks_of(launcher, as_dict, 2)
    time.sleep(moment.uniform(0.0, 0.3))
    state = state_of(as_dict)
    everything = processes_of_job(state, launcher.pid)
    pid = {each.what: each.process.pid for each in state.recorded()}
    assert {"MPS daemon", "MPS server", "keeper", "rank 0", "rank 1"} <= set(pid)
    since_s = time.monotonic()
    os.kill(launcher.pid if victim == "launcher" else pid[victim], signal.SIGKILL)
    _, notes = launcher.communicate(timeout=LIMIT_S)
    assert all_gone(everything, state, since_s)
    if victim != "launcher":
        what = victim if victim == "rank 1" else f"the {victim} (process {pid[victim]})"
        assert notes.strip().splitlines()[-1].startswith(f"wattree: {what}")
        assert launcher.returncode == 1


def test_ranks_see_their_device_by_uuid_and_share_it_by_mps(
    home: dict[str, str], tmp_path: Path
) -> None:
    """Ranks of a device are consecutive, all of them clients, each with the device as its first."""
    other = {**DEVICE, "uuid": DEVICE["uuid"].replace("0000aaaa", "1111bbbb")}
    as_dict = {**home, **install(tmp_path / "bin", devices=[DEVICE, other])}
    names = ("RANK", "LOCAL_RANK", "WATTREE_LOCAL_RANK", "WATTREE_DEVICE", "WATTREE_DEVICE_RANK")
    limits = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
    notes_file = tmp_path / "notes"
    program = (
        f"{CONNECT}\nimport time\n"
        f"said = [os.environ[name] for name in {(*names, 'CUDA_VISIBLE_DEVICES', *limits)}]\n"
        "pathlib.Path(os.environ['PLACE'], 'said' + said[0]).write_text(' '.join(said))\n"
        f"while 'are clients of' not in pathlib.Path({str(notes_file)!r}).read_text():\n"
        "    time.sleep(0.05)"
    )
    options = ["-q", "2", "--thread-percentage", "60", "--memory-limit", "2 GiB"]
    command = [sys.executable, "-m", "wattree", "launch", *options, "--"]
    with notes_file.open("w") as stderr:
        done = subprocess.run(
            [*command, sys.executable, "-c", program], env=as_dict, stderr=stderr, check=False
        )
    told = notes_file.read_text()
    assert done.returncode == 0, told
    assert "2 process(es) on each of 2 accelerators, which they share by MPS" in told
    assert "all 4 processes here are clients of the MPS daemon" in told
    notes = [Path(as_dict["PLACE"], f"said{rank}").read_text().split() for rank in range(4)]
    uuids = [DEVICE["uuid"], DEVICE["uuid"], other["uuid"], other["uuid"]]
    assert notes == [
        [str(rank), "0", str(rank), str(rank // 2), str(rank % 2), uuid, "60", "0=2048M"]
        for rank, uuid in enumerate(uuids)
    ]


def test_a_daemon_of_others_is_refused(home: dict[str, str], tmp_path: Path) -> None:
    """With its number, and what to do; its processes are left alone."""
    as_dict = {**home, **install(tmp_path / "bin")}
    pipes = tmp_path / "theirs"
    pipes.mkdir()
    theirs = subprocess.Popen(
        [str(tmp_path / "bin/nvidia-cuda-mps-control"), "-f"],
        # Without its devices it would be in the way of tests of other processes.
        env=as_dict
        | {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes)}
        | {"CUDA_VISIBLE_DEVICES": DEVICE["uuid"]},
    )
    try:
        while not (pipes / "control").exists():
            time.sleep(0.01)
        launcher = launched(as_dict, "-q", "2")
        _, notes = launcher.communicate(timeout=LIMIT_S)
        assert launcher.returncode == 2
        assert f"found nvidia-cuda-mps-control (process {theirs.pid}, pipes in {pipes})" in notes
        assert "or use --without-mps" in notes
        assert theirs.poll() is None
    finally:
        theirs.kill()
        theirs.wait()


def test_what_an_earlier_run_left_is_cleared_and_told(home: dict[str, str]) -> None:
    """By the next one, whatever it runs; other jobs that run are left alone."""
    first = launched(home, "-q", "2", "--device", "cpu")
    ranks_of(first, home, 2)
    state = state_of(home)
    everything = processes_of_job(state, first.pid)
    second = [sys.executable, "-m", "wattree", "launch", "--device", "cpu", "--", "true"]
    done = subprocess.run(second, env=home, capture_output=True, text=True, check=True)
    assert "earlier run" not in done.stderr
    assert all(is_alive(process) for process in everything[:4])
    first.send_signal(signal.SIGSTOP)  # else it might clear up before it is killed
    for each in (state.recorded()[0].process, everything[0]):  # the keeper, then the launcher
        os.kill(each.pid, signal.SIGKILL)
    first.wait(LIMIT_S)
    done = subprocess.run(second, env=home, capture_output=True, text=True, check=True)
    assert "wattree: the launcher of an earlier run (" in done.stderr
    first.communicate(timeout=LIMIT_S)
    assert not any(map(is_alive, everything))
    assert not state.folder.exists()
