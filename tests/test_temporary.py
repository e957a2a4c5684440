"""Temporary folders of processes that were killed go; those of others stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wattree.process import is_alive, process_of, this_process
from wattree.temporary import remove_orphans, temporary_folder

MAKE = (
    "import sys; sys.path[:] = sys.argv[1:]\n"
    "from wattree.temporary import temporary_folder\n"
    "folder = temporary_folder('train'); print(folder.name, flush=True)\n"
)


def _made(place: Path, then: str) -> subprocess.Popen[str]:
    """Return a process that made a folder in `place` and does something then."""
    return subprocess.Popen(
        [sys.executable, "-c", MAKE + then, *sys.path],
        env={**os.environ, "TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_folders_of_killed_processes_go_and_those_of_live_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command removes what a kill left, whatever else lies there."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    strange = tmp_path / "wattree-train-abc"
    other = tmp_path / "wattree-train-00000000-1-1-x"  # of another boot, container or machine
    for folder in (strange, other):
        folder.mkdir()
    live = _made(tmp_path, "sys.stdin.read()")
    assert live.stdout is not None
    # Made before the other is killed: whoever makes a folder removes what the killed have left.
    its = Path(live.stdout.readline().strip())
    killed = _made(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert killed.stdout is not None
    left = Path(killed.stdout.readline().strip())
    killed.wait()
    was_left = left.is_dir()
    with temporary_folder("train") as mine:
        there = sorted(tmp_path.iterdir())
        again = remove_orphans(tmp_path)
    live.communicate()
    killed.communicate()

    assert was_left
    assert there == sorted([strange, other, its, Path(mine)])
    assert again == []
    assert not Path(mine).exists()


def test_a_process_of_the_same_number_is_another(tmp_path: Path) -> None:
    """Numbers are given again: the start tells them apart."""
    with temporary_folder("train") as mine:
        pid = str(os.getpid())
        start = this_process().start
        older = tmp_path / Path(mine).name.replace(f"-{pid}-{start}-", f"-{pid}-1{start}-")
        same = tmp_path / Path(mine).name
        older.mkdir()
        same.mkdir()

        assert remove_orphans(tmp_path) == [older]


def test_a_process_that_ended_is_not_alive() -> None:
    """Even where its parent has yet to ask for its end."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    process = process_of(child.pid)
    child.wait()

    assert process is None or not is_alive(process)
    assert is_alive(this_process())
