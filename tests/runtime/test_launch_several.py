"""Several launchers of one job, as torchrun, srun or mpirun start them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.distributed.warm import warm_python
from tests.runtime.fake_nvidia import CONNECT, DEVICE, install
from wattree.runtime.colocation.clean import clear_orphans
from wattree.runtime.colocation.processes import end
from wattree.runtime.colocation.state import state_root, states_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
ROOT = Path(__file__).resolve().parents[2]
#: All ends within so long of whatever went wrong, on any machine: less than ranks sleep. [s]
LIMIT_S = 200.0
#: Prints its arguments, waits for the given time, or until a file says that all are clients of a
#: daemon, and ends with the given status.
RANK = f"""
{CONNECT}
import sys, time
names = sys.argv[3:]
said = " ".join(os.environ.get(name, "-") for name in names)
place = pathlib.Path(os.environ["PLACE"], "rank" + os.environ["RANK"])
place.with_suffix(".part").write_text(f"{{os.getpid()}} {{said}}")
place.with_suffix(".part").rename(place)
if sys.argv[1].isdecimal():
    time.sleep(int(sys.argv[1]))
else:
    while pathlib.Path(sys.argv[1]).read_text().count("are clients of") < 2:
        time.sleep(0.05)
sys.exit(int(sys.argv[2]) if os.environ["RANK"] == "3" else 0)
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return an environment in which launchers keep their state in a folder of this test."""
    with tempfile.TemporaryDirectory() as base:
        as_dict = {"XDG_RUNTIME_DIR": base, "XDG_CONFIG_HOME": base}
        as_dict |= {"PYTHONPATH": str(ROOT / "src"), "PLACE": str(tmp_path)}
        yield os.environ | as_dict
        root = state_root(as_dict)
        end(state.launcher for state in states_in(root))
        clear_orphans(root)


def _free_port() -> int:
    """Return a port that is free, as are those after it, most likely."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _launchers(
    home: dict[str, str],
    options: Sequence[Sequence[str]],
    words: Sequence[str],
    *,
    kind: str = "torchrun",
    come: int | None = None,
    notes: int = subprocess.PIPE,
) -> list[subprocess.Popen[str]]:
    """Start a launcher with each list of options, or the first so many, as an outer one would."""
    port, count = str(_free_port()), len(options)
    begun = []
    for rank, given in enumerate(options[:come]):
        as_dict = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        if kind == "torchrun":
            as_dict |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
            as_dict |= {"LOCAL_WORLD_SIZE": str(count), "TORCHELASTIC_USE_AGENT_STORE": "False"}
        else:
            as_dict |= {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(count)}
            as_dict |= {"SLURM_LOCALID": str(rank), "SLURM_STEP_TASKS_PER_NODE": f"{count}(x1)"}
        program = [warm_python(), "-m", "wattree", "launch", *given]
        program += [] if "--device" in given else ["--device", "cpu"]
        begun.append(
            subprocess.Popen(
                [*program, "--", sys.executable, "-S", "-c", RANK, *words],
                env=home | as_dict,
                stderr=notes,
                text=True,
            )
        )
    return begun


def _ended(launchers: Sequence[subprocess.Popen[str]]) -> tuple[list[int], str]:
    """Return exit codes, and what all said."""
    notes = [launcher.communicate(timeout=600)[1] for launcher in launchers]
    return [launcher.returncode for launcher in launchers], "".join(filter(None, notes))


def _said(home: dict[str, str], count: int) -> list[list[str]]:
    until_s = time.monotonic() + 600
    paths = [Path(home["PLACE"], f"rank{rank}") for rank in range(count)]
    while not all(path.exists() for path in paths):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return [path.read_text().split() for path in paths]


def test_ranks_are_counted_over_all_launchers(home: dict[str, str]) -> None:
    """They get torchrun's variables, but not the agent's store, which is of fewer ranks."""
    names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WATTREE_DEVICE")
    more = ("WATTREE_DEVICE_RANK", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
    codes, notes = _ended(_launchers(home, [["-q", "2"]] * 2, ["0", "0", *names, *more]))
    assert codes == [0, 0], notes
    assert notes.count("2 process(es) on each of 2 shares of the processor; 4 ranks") == 1
    as_dict = [words[1:] for words in _said(home, 4)]
    assert [words[:5] for words in as_dict] == [
        ["4", str(rank), "4", str(rank // 2), str(rank % 2)] for rank in range(4)
    ]
    assert len({words[5] for words in as_dict}) == 1
    assert {words[6] for words in as_dict} == {"-"}
    assert not list(state_root(home).glob("*/job.json"))


def test_variables_of_the_outer_launcher_are_those_of_the_rank(home: dict[str, str]) -> None:
    """A script that reads Slurm's gets its own number, not that of its launcher."""
    names = ("RANK", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS")
    launchers = _launchers(home, [["-q", "2"]] * 2, ["0", "0", *names], kind="srun")
    codes, notes = _ended(launchers)
    assert codes == [0, 0], notes
    assert [words[1:] for words in _said(home, 4)] == [
        [str(rank), str(rank), "4", str(rank), "4"] for rank in range(4)
    ]


def test_launchers_that_disagree_all_end_and_one_says_why(home: dict[str, str]) -> None:
    """Mismatched q, say: within seconds."""
    begin_s = time.monotonic()
    codes, notes = _ended(_launchers(home, [["-q", "2"], ["-q", "3"]], ["300", "0"]))
    assert codes == [2, 2]
    assert len(re.findall("--processes-per-device: found 2 by launcher 0", notes)) == 1
    assert time.monotonic() - begin_s < LIMIT_S


def test_a_launcher_that_does_not_come_is_missed(home: dict[str, str]) -> None:
    """Within the time that was said."""
    options = ["-q", "2", "--timeout", "2 s"]
    codes, notes = _ended(_launchers(home, [options] * 2, ["60", "0"], come=1))
    assert codes == [2]
    assert "launcher 1 of 2 did not come within 2 s" in notes


@pytest.mark.parametrize("victim", ["rank 3", "launcher 1", "launcher 0"])
def test_what_is_killed_on_one_host_ends_all(home: dict[str, str], victim: str) -> None:
    """One message, and nothing left, though nothing connects the ranks."""
    launchers = _launchers(home, [["-q", "2"]] * 2, ["300", "0"])
    numbers = [int(words[0]) for words in _said(home, 4)]
    since_s = time.monotonic()
    if victim == "rank 3":
        os.kill(numbers[3], signal.SIGKILL)
    else:
        launchers[int(victim[-1])].kill()
    codes, notes = _ended(launchers)
    while any(Path(f"/proc/{number}").exists() for number in numbers):
        assert time.monotonic() - since_s < LIMIT_S
        time.sleep(0.02)
    assert time.monotonic() - since_s < LIMIT_S
    assert sorted(codes) == ([1, 1] if victim == "rank 3" else [-9, 1])
    what = "rank 3 was killed by signal 9" if victim == "rank 3" else f"{victim} on "
    assert len(re.findall(f"wattree: {what}", notes)) == 1


def test_an_exit_code_of_a_rank_is_told_by_its_launcher(home: dict[str, str]) -> None:
    """Once; and passed on by each."""
    codes, notes = _ended(_launchers(home, [["-q", "2"]] * 2, ["0", "7"]))
    assert codes == [7, 7]
    assert notes.count("wattree: rank 3 ended with exit code 7") == 1


def test_launchers_of_a_host_share_one_daemon(home: dict[str, str], tmp_path: Path) -> None:
    """The first starts it, for all devices; each sees to it that its own ranks are clients."""
    other = {**DEVICE, "uuid": DEVICE["uuid"].replace("0000aaaa", "2222cccc")}
    as_dict = home | install(tmp_path / "bin", devices=[DEVICE, other])
    names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "WATTREE_DEVICE")
    options, place = [["-q", "2", "--device", "cuda"]] * 2, tmp_path / "notes"
    with place.open("a") as file:
        words = [str(place), "0", *names]
        codes, _ = _ended(_launchers(as_dict, options, words, notes=file.fileno()))
    notes = place.read_text()
    assert codes == [0, 0], notes
    assert notes.count("which they share by MPS (daemon ") == 1
    assert notes.count("all 2 processes here are clients of the MPS daemon") == 2
    ranks = [words[1:] for words in _said(as_dict, 4)]
    assert len({words[0] for words in ranks}) == 1
    uuids = [DEVICE["uuid"]] * 2 + [other["uuid"]] * 2
    assert [words[1:] for words in ranks] == [
        [uuid, "0", str(rank // 2)] for rank, uuid in enumerate(uuids)
    ]


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI")
def test_mpi_may_start_every_process_itself(home: dict[str, str]) -> None:
    """Programs of MPI have to be ranks of MPI's; the numbers are the same."""
    pytest.importorskip("mpi4py")
    program = (
        "from mpi4py import MPI; import os, sys; world = MPI.COMM_WORLD\n"
        "names = ('RANK', 'WORLD_SIZE', 'WATTREE_DEVICE', 'WATTREE_DEVICE_RANK')\n"
        "said = [str(world.rank), str(world.size), *(os.environ[name] for name in names)]\n"
        "sys.stdout.write(' '.join(said) + '\\n')"  # one piece: ranks write at the same time
    )
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4", warm_python()]
    options = ["-q", "2", "--device", "cpu", "--reduce", "mpi", "--no-patch"]
    done = subprocess.run(
        [*command, "-m", "wattree", "launch", *options, "--", sys.executable, "-c", program],
        env=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"{rank} 4 {rank} 4 {rank // 2} {rank % 2}" for rank in range(4)
    ]
