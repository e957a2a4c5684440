"""Whatever is killed, and whenever: a job ends soon, says why, and leaves nothing behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.runtime.fake_nvidia import CONNECT, DEVICE, install
from wattree.process import Process, is_alive, process_of
from wattree.runtime.colocation.clean import clear_orphans
from wattree.runtime.colocation.environment import PARENT
from wattree.runtime.colocation.processes import end, marked
from wattree.runtime.colocation.state import JobState, new_state, state_root, states_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
#: A job ends within so long of whatever was killed. [s]
LIMIT_S = 10.0
ROOT = Path(__file__).resolve().parents[2]

#: A rank that does steps for ever: with shared memory, a helper, one in a session of its own.
RANK = f"""
{CONNECT}
import subprocess, sys, time
name = os.environ["WATTREE_SHARED"] + os.environ["RANK"]
pathlib.Path("/dev/shm", name).write_bytes(bytes(1000))
sleep = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
helpers = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
step = 0
while True:
    step += 1
    pathlib.Path(os.environ["PLACE"], "rank" + os.environ["RANK"]).write_text(f"{{os.getpid()}}.")
    time.sleep(0.01)
"""

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


@pytest.fixture
def home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return an environment in which state and shared memory of jobs are this test's alone."""
    import tempfile

    with tempfile.TemporaryDirectory() as base:
        as_dict = {"XDG_RUNTIME_DIR": base, "XDG_CONFIG_HOME": base}
        as_dict |= {"PYTHONPATH": str(ROOT / "src"), "PLACE": str(tmp_path)}
        yield os.environ | as_dict
        root = state_root(as_dict)
        end(state.launcher for state in states_in(root))  # of a test that failed half-way
        clear_orphans(root)


def _launch(home: Mapping[str, str], *options: str, program: str = RANK) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "wattree", "launch", *options]
    return subprocess.Popen(
        [*command, "--", sys.executable, "-S", "-c", program],
        env=dict(home),
        stderr=subprocess.PIPE,
        text=True,
    )


def _ranks(launcher: subprocess.Popen[str], home: Mapping[str, str], count: int) -> list[int]:
    """Wait until ranks do steps; return their numbers."""
    until_s = time.monotonic() + 30
    found: dict[int, int] = {}
    while len(found) < count:
        assert time.monotonic() < until_s
        if launcher.poll() is not None:
            raise AssertionError(launcher.communicate()[1])
        for rank in range(count):
            path = Path(home["PLACE"], f"rank{rank}")
            notes = path.read_text() if path.exists() else ""
            if notes.endswith("."):  # else it is being written
                found[rank] = int(notes[:-1])
        time.sleep(0.01)
    return [found[rank] for rank in range(count)]


def _state(home: Mapping[str, str]) -> JobState:
    (state,) = states_in(state_root(home))
    return state


def _everything(state: JobState, launcher: int) -> list[Process]:
    mine = process_of(launcher)
    assert mine is not None
    return [mine, *(each.process for each in state.recorded()), *marked("WATTREE_JOB", state.token)]


def _gone(processes: list[Process], state: JobState, since_s: float) -> bool:
    """Wait until nothing is left; return whether that was in time."""
    while time.monotonic() - since_s < LIMIT_S:
        left = any(map(is_alive, processes)) or state.segments() or state.folder.exists()
        if not left:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("victim", ["rank", "leader", "launcher", "keeper and launcher"])
def test_a_job_ends_when_one_of_its_processes_is_killed(
    home: dict[str, str], victim: str, seed: int
) -> None:
    """At a random moment: within ten seconds nothing is left, and the message says what it was."""
    moment = random.Random(f"{victim} {seed}")
    launcher = _launch(home, "-q", "3", "--device", "cpu")
    ranks = _ranks(launcher, home, 3)
    time.sleep(moment.uniform(0.0, 0.3))
    state = _state(home)
    assert len(state.segments()) == 3
    everything = _everything(state, launcher.pid)
    assert len(everything) >= 3 + 6 + 2
    rank = {"rank": moment.randrange(1, 3), "leader": 0}.get(victim)
    since_s = time.monotonic()
    if rank is not None:
        os.kill(ranks[rank], signal.SIGKILL)
    if "keeper" in victim:
        launcher.send_signal(signal.SIGSTOP)  # else it may start another in time
        os.kill(_keepers(state)[-1].pid, signal.SIGKILL)
    if "launcher" in victim:
        launcher.kill()
    launcher.wait(LIMIT_S)
    if "keeper" in victim:
        # No one is left to clear up: the ranks end all the same, the rest is the next one's.
        (cleared,) = clear_orphans(state_root(home))
        assert "was killed" in cleared.summary()
    _, notes = launcher.communicate(timeout=LIMIT_S)  # ends when no one can write to it
    assert _gone(everything, state, since_s)
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


def _keepers(state: JobState) -> list[Process]:
    return [each.process for each in state.recorded() if each.what == "keeper"]


def test_a_keeper_that_is_killed_is_replaced_and_named(home: dict[str, str]) -> None:
    """The job goes on, and is cleared up after as before when its launcher is killed, too."""
    launcher = _launch(home, "-q", "2", "--device", "cpu")
    ranks = _ranks(launcher, home, 2)
    state = _state(home)
    (first,) = _keepers(state)
    os.kill(first.pid, signal.SIGKILL)
    until_s = time.monotonic() + LIMIT_S
    while len(_keepers(state)) < 2 and time.monotonic() < until_s:
        time.sleep(0.02)
    second = _keepers(state)[-1]
    everything = _everything(state, launcher.pid)
    runs_on = all(process_of(rank) is not None for rank in ranks)
    since_s = time.monotonic()
    launcher.kill()
    _, notes = launcher.communicate(timeout=LIMIT_S)

    assert runs_on
    assert (
        f"wattree: warning: the keeper (process {first.pid}), which clears up should this launcher "
        f"be killed, has ended (killed by SIGKILL); started another (process {second.pid})"
    ) in notes
    assert _gone(everything, state, since_s)


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("victim", ["MPS daemon", "MPS server", "rank 1", "launcher"])
def test_a_job_that_shares_by_mps_ends_when_the_daemon_does(
    home: dict[str, str], tmp_path: Path, victim: str, seed: int
) -> None:
    """A stand-in for it. Clients that are killed, and a launcher that is, take it with them."""
    moment = random.Random(f"{victim} {seed}")
    as_dict = {**home, **install(tmp_path / "bin")}
    launcher = _launch(as_dict, "-q", "2")
    _ranks(launcher, as_dict, 2)
    time.sleep(moment.uniform(0.0, 0.3))
    state = _state(as_dict)
    everything = _everything(state, launcher.pid)
    pid = {each.what: each.process.pid for each in state.recorded()}
    assert {"MPS daemon", "MPS server", "keeper", "rank 0", "rank 1"} <= set(pid)
    since_s = time.monotonic()
    os.kill(launcher.pid if victim == "launcher" else pid[victim], signal.SIGKILL)
    _, notes = launcher.communicate(timeout=LIMIT_S)
    assert _gone(everything, state, since_s)
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
    program = (
        f"{CONNECT}\nimport time\n"
        f"said = [os.environ[name] for name in {(*names, 'CUDA_VISIBLE_DEVICES', *limits)}]\n"
        "pathlib.Path(os.environ['PLACE'], 'said' + said[0]).write_text(' '.join(said))\n"
        "time.sleep(1.5)"
    )
    options = ["-q", "2", "--thread-percentage", "60", "--memory-limit", "2 GiB"]
    done = subprocess.run(
        [sys.executable, "-m", "wattree", "launch", *options, "--", sys.executable, "-c", program],
        env=as_dict,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 process(es) on each of 2 accelerators, which they share by MPS" in done.stderr
    assert "all 4 processes here are clients of the MPS daemon" in done.stderr
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
        env=as_dict | {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes)},
    )
    try:
        while not (pipes / "control").exists():
            time.sleep(0.01)
        launcher = _launch(as_dict, "-q", "2")
        _, notes = launcher.communicate(timeout=30)
        assert launcher.returncode == 2
        assert f"found nvidia-cuda-mps-control (process {theirs.pid}, pipes in {pipes})" in notes
        assert "or use --without-mps" in notes
        assert theirs.poll() is None
    finally:
        theirs.kill()
        theirs.wait()


def test_what_an_earlier_run_left_is_cleared_and_told(home: dict[str, str]) -> None:
    """By the next one, whatever it runs; other jobs that run are left alone."""
    first = _launch(home, "-q", "2", "--device", "cpu")
    _ranks(first, home, 2)
    state = _state(home)
    everything = _everything(state, first.pid)
    second = [sys.executable, "-m", "wattree", "launch", "--device", "cpu", "--", "true"]
    done = subprocess.run(second, env=home, capture_output=True, text=True, check=True)
    assert "earlier run" not in done.stderr
    assert all(is_alive(process) for process in everything[:4])
    for each in (state.recorded()[0].process, everything[0]):  # the keeper, then the launcher
        os.kill(each.pid, signal.SIGKILL)
    first.wait(LIMIT_S)
    done = subprocess.run(second, env=home, capture_output=True, text=True, check=True)
    assert "wattree: the launcher of an earlier run (" in done.stderr
    assert "removed 2 piece(s) of shared memory" in done.stderr
    first.communicate(timeout=LIMIT_S)
    assert not any(map(is_alive, everything))
    assert not state.folder.exists()


def test_a_folder_that_was_emptied_under_a_job_changes_nothing(home: dict[str, str]) -> None:
    """Temporary folders are, after some days: the launcher is killed, and nothing is left."""
    launcher = _launch(home, "-q", "2", "--device", "cpu")
    _ranks(launcher, home, 2)
    state = _state(home)
    everything = _everything(state, launcher.pid)
    state.remove()
    since_s = time.monotonic()
    launcher.kill()
    launcher.communicate(timeout=LIMIT_S)
    assert _gone(everything, state, since_s)


def test_a_run_that_is_asked_to_stop_leaves_nothing(home: dict[str, str]) -> None:
    """Ctrl-C, or the batch system."""
    launcher = _launch(home, "-q", "2", "--device", "cpu")
    _ranks(launcher, home, 2)
    state = _state(home)
    everything = _everything(state, launcher.pid)
    since_s = time.monotonic()
    launcher.send_signal(signal.SIGTERM)
    _, notes = launcher.communicate(timeout=LIMIT_S)
    assert launcher.returncode == 130
    assert notes.strip().endswith("wattree: interrupted")
    assert _gone(everything, state, since_s)


def test_who_waits_for_processes_is_told_and_may_end_them(home: dict[str, str]) -> None:
    """A script that ignores the signal: the first one says for what it waits, a second ends it."""
    launcher = _launch(home, "-q", "2", "--device", "cpu", program=f"{IGNORE}{RANK}")
    _ranks(launcher, home, 2)
    state = _state(home)
    everything = _everything(state, launcher.pid)
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
    assert _gone(everything, state, since_s)
    assert time.monotonic() - since_s < LIMIT_S / 2


def test_two_jobs_at_once_share_nothing(home: dict[str, str], tmp_path: Path) -> None:
    """One is killed and cleared away; the other does not notice, and goes on to its end."""
    jobs = []
    for name in ("killed", "whole"):
        place = tmp_path / name
        place.mkdir()
        as_dict = home | {"PLACE": str(place)}
        program = f"{RANK_UNTIL}{RANK}"
        jobs.append((_launch(as_dict, "-q", "2", "--device", "cpu", program=program), as_dict))
    for launcher, as_dict in jobs:
        _ranks(launcher, as_dict, 2)
    (killed, of_killed), (whole, of_whole) = jobs
    state_of = {state.launcher.pid: state for state in states_in(state_root(home))}
    left = _everything(state_of[whole.pid], whole.pid)
    ended = _everything(state_of[killed.pid], killed.pid)
    ports = [Path(as_dict["PLACE"], "port0").read_text() for as_dict in (of_killed, of_whole)]
    assert len(set(ports)) == 2
    since_s = time.monotonic()
    killed.kill()
    killed.communicate(timeout=LIMIT_S)
    assert _gone(ended, state_of[killed.pid], since_s)
    assert all(map(is_alive, left))
    assert len(state_of[whole.pid].segments()) == 2
    since_s = time.monotonic()
    Path(of_whole["PLACE"], "end").touch()
    _, notes = whole.communicate(timeout=LIMIT_S)
    assert whole.returncode == 0, notes
    assert "earlier run" not in notes
    assert _gone(left, state_of[whole.pid], since_s)


def test_a_launcher_ends_with_the_process_that_it_was_told(home: dict[str, str]) -> None:
    """A benchmark that is ended leaves no job behind, which no one would look for."""
    starter = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
    launcher = _launch(home | {PARENT: str(starter.pid)}, "-q", "2", "--device", "cpu")
    _ranks(launcher, home, 2)
    state = _state(home)
    everything = _everything(state, launcher.pid)
    since_s = time.monotonic()
    starter.kill()
    starter.wait()
    _, notes = launcher.communicate(timeout=LIMIT_S)
    assert launcher.returncode == 1
    assert f"process {starter.pid} (WATTREE_PARENT) is gone, which started this" in notes
    assert _gone(everything, state, since_s)


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
        _ranks(starter, home, 2)
        state = _state(home)
        everything = _everything(state, state.launcher.pid)
        since_s = time.monotonic()
        starter.kill()
        starter.wait()
        if not ends:
            time.sleep(1.0)
            assert all(map(is_alive, everything))
            end([state.launcher])
            since_s = time.monotonic()
        assert _gone(everything, state, since_s)
        for path in Path(home["PLACE"]).glob("rank*"):
            path.unlink()
