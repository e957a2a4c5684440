"""Launchers' environments, and ranks as child processes; nothing here needs torch."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.errors import RunError
from wattree.runtime.launch import INTERRUPTED, launch_from, run_ranks, spawn
from wattree.runtime.launch.environment import first_host
from wattree.runtime.launch.script import reserved_port

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29501",
}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu[007-008]",
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
}
#: `IP_LOCAL_PORT_RANGE` of `ip(7)`: the ports that a socket may be given.
_PORT_RANGE = 51
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "job-17",
}
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


def test_no_launcher_says_nothing() -> None:
    """Variables of an allocation alone, as in a batch script, are no rank's."""
    assert launch_from({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}) is None


def test_torchrun_says_where_ranks_meet() -> None:
    """Its variables are taken as they are."""
    launch = launch_from(TORCHRUN)
    assert launch is not None
    assert (launch.rank, launch.world, launch.local_rank, launch.local_world) == (3, 4, 1, 2)
    assert (launch.address, launch.port, launch.launcher) == ("node1", 29501, "torchrun")


def test_srun_names_hosts_and_ranks_agree_on_a_port() -> None:
    """Ranks meet on the first host, at a port that follows from the job."""
    first, other = (
        launch_from({**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}),
        launch_from(SRUN),
    )
    assert first is not None
    assert other is not None
    assert (other.rank, other.world, other.local_rank, other.local_world) == (5, 8, 1, 4)
    assert other.address == first.address == "gpu007"
    assert other.port == first.port
    assert other.job == first.job == "SLURM_JOB_ID=1234 SLURM_STEP_ID=0"
    assert 20_000 <= other.port < 32_000
    another = launch_from({**SRUN, "SLURM_JOB_ID": "1235"})
    assert another is not None
    assert another.port != other.port


@pytest.mark.parametrize("environment", [MPIRUN, HYDRA])
def test_mpi_on_one_host_needs_no_address(environment: dict[str, str]) -> None:
    """All ranks are here."""
    launch = launch_from(environment)
    assert launch is not None
    assert launch.world == 2
    assert launch.address == "127.0.0.1"


def test_mpi_on_several_hosts_is_told_what_to_say() -> None:
    """No variable of Open MPI names the host of rank 0."""
    spread = {**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    with pytest.raises(RunError, match=r"MASTER_ADDR: is missing.*mpirun -x MASTER_ADDR=HOST"):
        launch_from(spread)
    launch = launch_from({**spread, "MASTER_ADDR": "node9"})
    assert launch is not None
    assert launch.address == "node9"


def test_torchrun_under_srun_is_torchrun() -> None:
    """The inner launcher knows the ranks."""
    launch = launch_from({**SRUN, **TORCHRUN})
    assert launch is not None
    assert (launch.launcher, launch.world) == ("torchrun", 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "x"}, "RANK: found 'x', expected a whole number from 0"),
        ({"RANK": "4"}, "RANK: found 4, expected a rank below WORLD_SIZE=4"),
        ({"MASTER_PORT": "-1"}, "MASTER_PORT: found '-1', expected a whole number from 0"),
    ],
)
def test_impossible_variables_are_refused(changes: dict[str, str], message: str) -> None:
    """The message names the variable."""
    with pytest.raises(RunError, match="environment of torchrun") as caught:
        launch_from({**TORCHRUN, **changes})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[007-008]", "gpu007"),
        ("a[3,9-12]-ib,b1", "a3-ib"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_list(hosts: str, first: str) -> None:
    """Lists as Slurm writes them."""
    assert first_host(hosts) == first


@given(
    head=st.from_regex(r"[a-z][a-z-]{0,5}", fullmatch=True),
    numbers=st.lists(st.integers(0, 9999), min_size=1, max_size=4),
    width=st.integers(1, 5),
)
def test_numbers_keep_their_zeros(head: str, numbers: list[int], width: int) -> None:
    """`node[003-…]` begins with `node003`."""
    text = [str(number).zfill(width) for number in numbers]
    assert first_host(f"{head}[{','.join(text)}],other[1-2]") == head + text[0]


# ---------------------------------------------------------------- ports


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the port is only found free")
def test_a_port_is_kept_for_the_ranks() -> None:
    """Who names no port never gets it; who names it, and allows its reuse, listens there."""
    with reserved_port() as port:
        only = struct.pack("I", port << 16 | port)
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")):
            with socket.socket(family) as other:
                try:
                    other.setsockopt(socket.IPPROTO_IP, _PORT_RANGE, only)
                except OSError:
                    pytest.skip("the kernel is older than 6.3")
                with pytest.raises(OSError, match="in use"):
                    other.bind((host, 0))
        with (
            socket.create_server(("", port)) as store,
            socket.create_connection(("127.0.0.1", port)),
        ):
            store.accept()[0].close()


# ---------------------------------------------------------------- children


def _run(program: str, ranks: int, grace_s: float = 5.0, **environment: str) -> Any:
    return run_ranks(
        [sys.executable, "-c", program],
        ranks,
        environment={**os.environ, "PYTHONPATH": "src", **environment},
        grace_s=grace_s,
    )


def test_children_know_their_ranks(tmp_path: Path) -> None:
    """Each has a number of its own; all meet in one file."""
    program = (
        "import os, pathlib; from wattree.runtime.launch import launch_from\n"
        "launch = launch_from(os.environ)\n"
        "place = pathlib.Path(os.environ['PLACE']) / str(launch.rank)\n"
        "place.write_text(f'{launch.world} {launch.local_rank} {launch.store}')"
    )
    finished = _run(program, 3, PLACE=str(tmp_path))
    assert (finished.code, finished.failure) == (0, None)
    as_dict = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
    assert [(world, local) for world, local, _ in as_dict] == [
        ("3", str(rank)) for rank in range(3)
    ]
    assert len({store for _, _, store in as_dict}) == 1


def test_the_first_failure_is_told_and_others_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 fails; rank 0 only notices, earlier; rank 2 would sleep on."""
    monkeypatch.setattr(spawn, "_CAUSE_S", 200.0)  # of a machine with other work
    program = (
        "import os, pathlib, sys, time; from wattree.runtime.launch.spawn import leave_failure\n"
        f"rank, here = int(os.environ['RANK']), pathlib.Path({str(tmp_path / 'here')!r})\n"
        "if rank == 0:\n"
        "    while not here.exists(): time.sleep(0.01)\n"
        "    leave_failure(0, code=2, message='lost a peer', is_echo=True); sys.exit(2)\n"
        "if rank == 1:\n"
        "    here.touch(); time.sleep(1.0)\n"
        "    leave_failure(1, code=2, message='rank 1: the cause', is_echo=False)\n"
        "    sys.exit(2)\n"
        "time.sleep(600)"
    )
    begin_s = time.monotonic()
    finished = _run(program, 3)
    assert (finished.code, finished.failure.message) == (2, "rank 1: the cause")
    assert time.monotonic() - begin_s < 500


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        ("os.kill(os.getpid(), 9)", 1, "rank 1 was killed by signal 9 (SIGKILL)"),
        ("sys.exit(7)", 7, "rank 1 ended with exit code 7"),
    ],
)
def test_a_rank_that_says_nothing_is_named(end: str, code: int, message: str) -> None:
    """Whoever ended it, and however; its code is passed on."""
    program = f"import os, sys, time\nif os.environ['RANK'] == '1': {end}\ntime.sleep(600)"
    finished = _run(program, 2)
    assert finished.code == code
    assert finished.failure.message.startswith(message)


@pytest.mark.parametrize("hears", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"])
def test_a_rank_that_alone_was_asked_to_stop_takes_the_rest_along(
    hears: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would wait for it where all meet; a soak found a SIGINT to one that still started."""
    monkeypatch.setattr(spawn, "_GONE_AFTER_S", 0.1)
    program = (
        f"import os, signal, sys, time\n{hears}"
        "if os.environ['RANK'] == '1': sys.exit(130)\ntime.sleep(600)"
    )
    finished = _run(program, 2, grace_s=0.1)

    assert (finished.code, finished.interrupted, finished.failure) == (INTERRUPTED, True, None)


_STARTER = (
    "import os, pathlib, sys\n"
    "from wattree.runtime.launch import run_ranks\n"
    "command = [sys.executable, '-c', sys.argv[1]]\n"
    "hears = lambda _: pathlib.Path(os.environ['PLACE'], 'hears').touch()\n"
    "finished = run_ranks(command, 2, environment=os.environ, grace_s=1, begun=hears)\n"
    "sys.exit(finished.code)"
)


def _start(program: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a process whose two ranks write their number into a folder; wait for all three."""
    starter = subprocess.Popen(
        [sys.executable, "-c", _STARTER, program],
        env={**os.environ, "PYTHONPATH": "src", "PLACE": str(folder)},
    )
    until_s = time.monotonic() + 600
    while len(list(folder.glob("rank*"))) < 2 or not (folder / "hears").exists():
        assert time.monotonic() < until_s
        time.sleep(0.02)
    return starter


def _numbers(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("rank")) for path in folder.glob("rank*")]


def _is_alive(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


_SAY = (
    "import os, pathlib, signal, sys, time\n"
    "from wattree.runtime.launch import watch_parent\n"
    "sys.platform = 'elsewhere'\n"
    "watch_parent()\n"
)
_HERE = "pathlib.Path(os.environ['PLACE'], f'rank{os.getpid()}').touch()\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ranks_that_are_asked_to_stop_may_finish(tmp_path: Path, number: int) -> None:
    """The signal reaches them; their exit code is passed on."""
    program = (
        f"{_SAY}signal.signal(signal.SIGTERM, lambda *_: sys.exit({INTERRUPTED}))\n"
        f"{_HERE}time.sleep(600)"
    )
    starter = _start(program, tmp_path)
    starter.send_signal(number)
    assert starter.wait(timeout=600) == INTERRUPTED
    assert not any(map(_is_alive, _numbers(tmp_path)))


def test_ranks_that_do_not_stop_are_ended(tmp_path: Path) -> None:
    """After the grace, here a second."""
    program = f"{_SAY}signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{_HERE}time.sleep(600)"
    starter = _start(program, tmp_path)
    starter.send_signal(signal.SIGTERM)
    assert starter.wait(timeout=600) == INTERRUPTED
    assert not any(map(_is_alive, _numbers(tmp_path)))


@pytest.mark.parametrize("begins", ["import os, pathlib, time\n", _SAY])
def test_no_rank_outlives_its_parent(tmp_path: Path, begins: str) -> None:
    """A parent that is killed can tell no one: children go, or notice once they have begun."""
    if begins != _SAY and sys.platform != "linux":
        pytest.skip("elsewhere than on Linux a rank has to notice by itself")
    starter = _start(f"{begins}{_HERE}time.sleep(600)", tmp_path)
    starter.kill()
    starter.wait()
    until_s = time.monotonic() + 600
    while any(map(_is_alive, _numbers(tmp_path))) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not any(map(_is_alive, _numbers(tmp_path)))
