"""Devices of a node, an MPS daemon of one's own, and what is refused: against stand-ins."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.fake_nvidia import CONNECT, DEVICE, install
from wattree.errors import HardwareError, RunError
from wattree.process import Process, is_alive, process_of
from wattree.runtime.colocation.devices import accelerators, clients_limit, processors
from wattree.runtime.colocation.mps import MpsDaemon, control_program
from wattree.runtime.colocation.mps_watch import Clients
from wattree.runtime.colocation.refuse import check_memory, foreign_daemons
from wattree.runtime.colocation.state import JobState, new_state, state_root
from wattree.runtime.launch.node import equipment
from wattree.runtime.launch.options import LaunchOptions

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
OTHER = {**DEVICE, "uuid": DEVICE["uuid"].replace("0000aaaa", "1111bbbb"), "compute_cap": "6.0"}
GIB = 2**30


@pytest.fixture
def state() -> Iterator[JobState]:
    """Return the state of a job in a folder that goes away; sockets have short names only."""
    with tempfile.TemporaryDirectory() as base:
        yield new_state(state_root({"XDG_RUNTIME_DIR": base}), ["train"])


# ---------------------------------------------------------------- devices


def test_devices_are_what_the_driver_lists(tmp_path: Path) -> None:
    """With memory, mode, capability, and the version that decides how many clients there may be."""
    found = accelerators(install(tmp_path / "bin", devices=[DEVICE, OTHER]))
    first, second = found.devices
    assert (first.index, first.uuid, first.name) == (0, DEVICE["uuid"], DEVICE["name"])
    assert (first.memory_bytes, first.free_bytes) == (40960 * 2**20, 40000 * 2**20)
    assert (first.capability, first.mode, first.is_divided) == ((8, 0), "Default", False)
    assert found.cuda == (12, 4)
    assert clients_limit(first, found.cuda) == 48
    assert clients_limit(first, (13, 1)) == 60
    assert clients_limit(second, (13, 1)) == 16


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", [1]),
        ("1,0", [1, 0]),
        ("GPU-1111", [1]),
        ("0,7,1", [0]),  # as CUDA: nothing counts after what is none
        ("", []),
        ("-1", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(
    tmp_path: Path, text: str, expected: list[int]
) -> None:
    """By number or by the beginning of a UUID."""
    as_dict = install(tmp_path / "bin", devices=[DEVICE, OTHER])
    found = accelerators({**as_dict, "CUDA_VISIBLE_DEVICES": text})
    assert [device.index for device in found.devices] == expected
    assert bool(found.fault) == (not expected)


def test_instances_of_divided_devices_are_refused(tmp_path: Path) -> None:
    """Whatever the variable says of them."""
    as_dict = install(tmp_path / "bin")
    with pytest.raises(HardwareError, match="MIG-1, an instance of a divided device"):
        accelerators({**as_dict, "CUDA_VISIBLE_DEVICES": "MIG-1"})


def test_a_processor_is_divided_into_devices() -> None:
    """Each has its share of memory; cores are divided where processes are laid out."""
    whole, (left, right) = processors(1)[0], processors(2)
    assert left.memory_bytes == right.memory_bytes == whole.memory_bytes / 2
    assert 0 < left.free_bytes <= left.memory_bytes
    assert left.cores == whole.cores


# ---------------------------------------------------------------- what is refused, and what is said


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        (
            {"compute_mode": "Prohibited"},
            {},
            "is in compute mode Prohibited, which takes no process; nvidia-smi -i 0 -c DEFAULT",
        ),
        (
            {"compute_mode": "Exclusive_Process"},
            {"with_mps": False},
            "is in compute mode Exclusive_Process, which takes one process where there is no MPS, "
            "not 2; run with MPS",
        ),
        ({}, {"processes": 49}, "takes 48 MPS clients, not 49; use 48 or fewer"),
        ({"compute_cap": "6.1"}, {"processes": 17}, "takes 16 MPS clients, not 17"),
        ({"compute_cap": "3.0"}, {}, "has compute capability 3.0, MPS needs 3.5; --without-mps"),
        ({"mig.mode.current": "Enabled"}, {}, "is divided into instances (MIG)"),
        (
            {},
            {"memory_per_process_bytes": 15 * GIB, "processes": 3},
            "has 39.06 GiB of memory free: room for 2 process(es) of 15.00 GiB, not for 3; use "
            "--processes-per-device 2, or a smaller batch",
        ),
        ({}, {"devices": 2}, "--devices: found 2, but this host has 1 that may be used"),
    ],
)
def test_devices_that_do_not_take_so_many_processes_are_refused(
    tmp_path: Path, changes: dict[str, str], options: dict[str, Any], message: str
) -> None:
    """With what to do."""
    as_dict = install(tmp_path / "bin", devices=[{**DEVICE, **changes}])
    with pytest.raises(RunError) as caught:
        equipment(LaunchOptions(**{"processes": 2, **options}), as_dict)
    assert message in str(caught.value)


def test_exclusive_devices_are_shared_by_mps(tmp_path: Path) -> None:
    """The mode that NVIDIA recommends for it."""
    device = {**DEVICE, "compute_mode": "Exclusive_Process"}
    found = equipment(LaunchOptions(processes=2), install(tmp_path / "bin", devices=[device]))
    assert found.control is not None
    assert found.notes == ()


def test_sixty_clients_are_taken_from_cuda_13_1_on(tmp_path: Path) -> None:
    """48 before, and on Volta."""
    volta = install(tmp_path / "volta", devices=[{**DEVICE, "compute_cap": "7.0"}], cuda="13.1")
    with pytest.raises(RunError, match="takes 48 MPS clients, not 49"):
        equipment(LaunchOptions(processes=49), volta)
    as_dict = install(tmp_path / "bin", cuda="13.1")
    assert len(equipment(LaunchOptions(processes=60), as_dict).devices) == 1
    with pytest.raises(RunError, match="takes 60 MPS clients, not 61"):
        equipment(LaunchOptions(processes=61), as_dict)


def test_without_the_program_processes_take_turns_and_the_user_is_told(tmp_path: Path) -> None:
    """Never a silent run without MPS; who asked for it is refused."""
    as_dict = install(tmp_path / "bin", with_mps=False)
    as_dict["PATH"] = str(tmp_path / "bin")
    found = equipment(LaunchOptions(processes=2), as_dict)
    assert found.control is None
    assert "nvidia-cuda-mps-control is not installed here" in found.notes[0]
    assert "processes take turns on a device instead" in found.notes[0]
    with pytest.raises(RunError, match="--with-mps: nvidia-cuda-mps-control is not installed"):
        equipment(LaunchOptions(processes=2, with_mps=True), as_dict)
    with pytest.raises(RunError, match="not installed"):
        equipment(LaunchOptions(processes=2, thread_percentage=50), as_dict)
    assert equipment(LaunchOptions(processes=1), as_dict).notes == ()


def test_time_slices_that_were_asked_for_are_said(tmp_path: Path) -> None:
    """And that limits of MPS do nothing then."""
    as_dict = install(tmp_path / "bin")
    found = equipment(LaunchOptions(processes=2, with_mps=False, thread_percentage=50), as_dict)
    assert found.control is None
    assert [note.partition(":")[0] for note in found.notes] == ["without MPS", "warning"]


def test_without_a_device_processes_share_the_processor_and_the_user_is_told(
    tmp_path: Path,
) -> None:
    """A driver that fails says why; who asked for an accelerator is refused."""
    as_dict = install(tmp_path / "bin", fault="No devices were found")
    found = equipment(LaunchOptions(processes=2, thread_percentage=50), as_dict)
    assert found.kind == "cpu"
    assert found.notes[0] == (
        "no accelerator here (nvidia-smi lists none (No devices were found)): processes share the "
        "processor"
    )
    assert found.notes[1] == "warning: --thread-percentage has no effect on a processor"
    with pytest.raises(RunError, match=r"--device: found no accelerator \(nvidia-smi lists none"):
        equipment(LaunchOptions(processes=2, device="cuda"), as_dict)
    assert equipment(LaunchOptions(processes=2, device="cpu"), as_dict).notes == ()


@pytest.mark.parametrize("processes", [1, 2])
def test_who_asked_for_mps_is_refused_without_a_device(tmp_path: Path, processes: int) -> None:
    """Never a run without what was asked for; the message says what to leave out."""
    as_dict = install(tmp_path / "bin", fault="No devices were found")
    asked = LaunchOptions(processes=processes, with_mps=True)
    with pytest.raises(RunError, match=r"--with-mps: found no accelerator \(nvidia-smi lists none"):
        equipment(asked, as_dict)
    with pytest.raises(RunError, match=r"found a processor \(--device cpu.*leave --with-mps out"):
        equipment(replace(asked, device="cpu"), as_dict)
    assert equipment(replace(asked, with_mps=False), as_dict).kind == "cpu"


def test_a_number_that_takes_the_host_down_is_refused() -> None:
    """Of processes, and of shares of the processor."""
    cores = len(processors(1)[0].cores)
    assert equipment(LaunchOptions(processes=32 * cores, device="cpu"), {}).kind == "cpu"
    with pytest.raises(RunError, match=rf"found {32 * cores + 1}, expected at most {32 * cores} "):
        equipment(LaunchOptions(processes=32 * cores + 1, device="cpu"), {})
    with pytest.raises(RunError, match=r"found 2 on each of 10000 shares of the processor"):
        equipment(LaunchOptions(processes=2, devices=10000, device="cpu"), {})


def test_a_host_without_room_says_for_how_many_there_is() -> None:
    """Of a processor, too."""
    device = processors(1)[0]
    with pytest.raises(
        RunError, match=r"room for 1 process\(es\).* not for 2; use --processes-per-device 1, or a"
    ):
        check_memory([device], 2, device.free_bytes * 0.6)
    with pytest.raises(RunError, match=r"room for 0 process\(es\).* use a smaller batch"):
        check_memory([device], 1, device.free_bytes * 1.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 0}, "--processes-per-device: found 0, expected 1 or more"),
        ({"devices": 0}, "--devices: found 0"),
        ({"thread_percentage": 0.0}, "--thread-percentage: found 0, expected above 0"),
        ({"thread_percentage": 101.0}, "--thread-percentage: found 101"),
        ({"reduce": "tree"}, "--reduce: found 'tree', expected one of hierarchical"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    """By name."""
    with pytest.raises(RunError) as caught:
        LaunchOptions(**options)
    assert message in str(caught.value)


# ---------------------------------------------------------------- the daemon


@pytest.fixture
def daemon(
    tmp_path: Path, state: JobState, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., MpsDaemon]]:
    """Return a function that starts a daemon; it is stopped at the end."""
    begun: list[MpsDaemon] = []

    def start(**environment: str) -> MpsDaemon:
        for name, value in install(tmp_path / "bin").items():
            monkeypatch.setenv(name, value)
        control = control_program(os.environ)
        assert control is not None
        begun.append(MpsDaemon(control, state, [DEVICE["uuid"]], os.environ | environment))
        begun[-1].ready()
        return begun[-1]

    yield start
    for each in begun:
        each.stop()


def _pids(state: JobState) -> list[Process]:
    return [each.process for each in state.recorded()]


def test_a_daemon_starts_answers_and_stops(
    daemon: Callable[..., MpsDaemon], state: JobState
) -> None:
    """Its pipes are private, its processes noted, and nothing is left of it."""
    mine = daemon()
    assert (state.folder / "pipe").stat().st_mode & 0o077 == 0
    assert mine.variables()["CUDA_MPS_PIPE_DIRECTORY"] == str(state.folder / "pipe")
    assert mine.fault() == ""
    assert [each.what for each in state.recorded()] == ["MPS daemon", "MPS server"]
    assert mine.control.servers() == [state.recorded()[1].process.pid]
    mine.stop()
    assert not any(map(is_alive, _pids(state)))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("refuses to start", r"ended with exit code 1: refuses to start; another process may hold"),
    ],
)
def test_a_daemon_that_does_not_start_says_why(
    daemon: Callable[..., MpsDaemon], state: JobState, fault: str, message: str
) -> None:
    """From its log."""
    with pytest.raises(RunError, match=message):
        daemon(FAKE_MPS_FAULT=fault)
    assert not any(map(is_alive, _pids(state)))


def test_a_daemon_or_server_that_is_killed_is_noticed(
    daemon: Callable[..., MpsDaemon], state: JobState
) -> None:
    """By number and start; the server first, as the daemon would go on."""
    mine = daemon()
    server = state.recorded()[1].process
    os.kill(server.pid, 9)
    while is_alive(server):
        time.sleep(0.01)
    assert mine.fault().startswith(f"the MPS server (process {server.pid}) is gone")
    os.kill(mine.pid, 9)
    while not mine.fault().startswith("the MPS daemon"):
        time.sleep(0.01)
    assert mine.fault() == f"the MPS daemon (process {mine.pid}) was killed by signal 9 (SIGKILL)"


def test_processes_are_clients_when_the_daemon_says_so(daemon: Callable[..., MpsDaemon]) -> None:
    """Descendants of a rank count for it; one on a device without MPS is reported."""
    mine = daemon()
    now = [0.0]
    clients = Clients(mine.control, os.environ, clock=lambda: now[0])
    wait = f"{CONNECT}\nimport time; print(1, flush=True); time.sleep(60)"
    direct = [sys.executable, "-c", wait]
    shell = ["bash", "-c", f"{sys.executable} -c '{wait}'; true"]
    ranks = []
    try:
        for command, as_dict in (
            (direct, mine.variables()),
            (shell, mine.variables()),
            (direct, {}),
        ):
            ranks.append(
                subprocess.Popen(
                    command,
                    env=os.environ | as_dict,
                    start_new_session=True,
                    stdout=subprocess.PIPE,
                )
            )
        clients.begin({rank.pid: number for number, rank in enumerate(ranks)})
        for rank in ranks:
            assert rank.stdout is not None
            rank.stdout.readline()
        assert clients.look() == ("", False)
        assert clients.missing == (2,)
        now[0] += 20.0
        assert clients.look() == ("", False)  # it may be about to connect
        now[0] += 20.0
        assert clients.look()[0].startswith("rank 2 uses its device without MPS")
    finally:
        for rank in ranks:
            os.killpg(rank.pid, 9)
            rank.wait()
            assert rank.stdout is not None
            rank.stdout.close()


def test_daemons_of_others_are_found(
    daemon: Callable[..., MpsDaemon], state: JobState, tmp_path: Path
) -> None:
    """Not one's own, and not one that has other devices."""
    mine = daemon()
    mine.control.servers()
    root = state.folder.parent
    assert foreign_daemons(root, [DEVICE["uuid"]]) == []
    for number, (uuid, found) in enumerate(((DEVICE["uuid"], True), (OTHER["uuid"], False))):
        pipes = tmp_path / f"theirs{number}"
        pipes.mkdir()
        as_dict = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes)}
        control = control_program(os.environ)
        theirs = subprocess.Popen(
            [str(control), "-f"], env=os.environ | as_dict | {"CUDA_VISIBLE_DEVICES": uuid}
        )
        while not (pipes / "control").exists():
            time.sleep(0.01)
        told_of = foreign_daemons(root, [DEVICE["uuid"]])
        theirs.kill()
        theirs.wait()
        expected = f"nvidia-cuda-mps-control (process {theirs.pid}, pipes in {pipes})"
        assert told_of == ([expected] if found else [])


def test_a_process_is_told_from_a_later_one_of_its_number() -> None:
    """Only what has number and start is ended."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process = process_of(child.pid)
    assert process is not None
    assert is_alive(process)
    assert not is_alive(Process(process.pid, "1"))
    child.kill()
    child.wait()
    assert not is_alive(process)
