"""A folder of checkpoints: one owner, nothing deleted that is not this run's, no damage loaded."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.flips import flip_a_bit
from wattree.errors import RunError
from wattree.process import numbering, process_of, this_process
from wattree.runtime.checkpoint.folder import ask_fresh, set_damaged_aside, set_run_aside, steps_in
from wattree.runtime.checkpoint.owner import FolderOwner
from wattree.runtime.checkpoint.resume import newest_whole
from wattree.runtime.checkpoint.tensors import load_tensors, save_checkpoint


@pytest.fixture
def alone() -> Iterator[Any]:
    """A process group of this process."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def _tensors(step: int) -> dict[str, Any]:
    return {"part0/model/a": torch.arange(40.0) + step, "losses": torch.full((step,), 0.5)}


def _saved(folder: Path, steps: list[int], group: Any) -> None:
    for step in steps:
        save_checkpoint(folder, step, _tensors(step), {"seed": 1, "step": step}, group)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _lock(folder: Path, **changed: Any) -> Path:
    """Leave the lock of a run of this process, with some of it changed."""
    FolderOwner(folder).acquire()
    path = folder / "lock.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    return path


def test_a_second_run_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """One deletes what the other reads; when the first is done, the folder is free."""
    first, second = FolderOwner(tmp_path), FolderOwner(tmp_path, patience_s=0.0)
    first.acquire()
    with pytest.raises(RunError) as caught:
        second.acquire()
    first.release()
    second.acquire()
    second.release()

    assert str(caught.value).startswith(f"{tmp_path}: is in use by process {os.getpid()} on ")
    assert str(caught.value).endswith(
        "and one run at a time writes into a folder; wait for its end, or name another "
        "training.checkpoint.dir"
    )
    assert _names(tmp_path) == []


def test_the_lock_of_a_killed_run_is_taken_over(tmp_path: Path) -> None:
    """It could not remove it itself; while it lives it is waited for, and then refused."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        process = process_of(other.pid)
        assert process is not None
        _lock(tmp_path, pid=process.pid, start=process.start)
        with pytest.raises(RunError, match=f"in use by process {process.pid} "):
            FolderOwner(tmp_path, patience_s=0.1).acquire()
        other.kill()
    FolderOwner(tmp_path, patience_s=0.0).acquire()

    assert json.loads((tmp_path / "lock.json").read_text())["pid"] == os.getpid()


def test_a_run_whose_lock_was_removed_writes_no_more(tmp_path: Path) -> None:
    """Someone took it for one of a dead run; another may be writing, and keeps its own lock."""
    first, second = FolderOwner(tmp_path), FolderOwner(tmp_path)
    first.acquire()
    first.check()
    (tmp_path / "lock.json").unlink()
    second.acquire()
    with pytest.raises(RunError, match="was removed while this run used the folder"):
        first.check()
    first.release()

    assert second.check() is None


def test_one_of_several_takes_a_lock_over(tmp_path: Path) -> None:
    """All see that it is stale at the same time."""
    _lock(tmp_path, start="1")
    won, barrier = [], threading.Barrier(8)

    def take() -> None:
        owner = FolderOwner(tmp_path, patience_s=0.0)
        barrier.wait()
        try:
            owner.acquire()
            won.append(owner)
        except RunError:
            pass

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(won) == 1


@pytest.mark.parametrize("place", ["other-boot pid:[1]", f"{numbering().split()[0]} pid:[1]"])
def test_a_lock_of_another_host_or_container_is_reported(tmp_path: Path, place: str) -> None:
    """This host cannot determine whether that process still runs."""
    path = _lock(tmp_path, host="node7", machine="node7 x", numbering=place, pid=12)
    with pytest.raises(RunError) as caught:
        FolderOwner(tmp_path, patience_s=0.0).acquire()

    assert f"{tmp_path}: is locked by process 12 on node7 (since " in str(caught.value)
    assert f"if it has ended, remove {path} and run again" in str(caught.value)


def test_a_lock_of_before_this_machine_was_started_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the same command goes on by itself."""
    monkeypatch.setattr("wattree.runtime.checkpoint.owner._machine", lambda: "here abc")
    _lock(tmp_path, numbering="other-boot pid:[1]", pid=this_process().pid)
    FolderOwner(tmp_path, patience_s=0.0).acquire()

    assert json.loads((tmp_path / "lock.json").read_text())["numbering"] == numbering()


@pytest.mark.parametrize("text", ["", "{}", "[" * 3000, '{"pid": "x"}'])
def test_a_lock_that_cannot_be_read_is_reported(tmp_path: Path, text: str) -> None:
    """It may be anybody's."""
    (tmp_path / "lock.json").write_text(text)
    with pytest.raises(RunError, match="remove it if no run writes into this folder"):
        FolderOwner(tmp_path, patience_s=0.0).acquire()


def test_a_fresh_run_keeps_its_own_checkpoints_and_those_before(tmp_path: Path, alone: Any) -> None:
    """Its steps are lower than those of the run before; after a kill it goes on from its own."""
    _saved(tmp_path, [290, 300], alone)
    ask_fresh(tmp_path)
    aside = set_run_aside(tmp_path)
    _saved(tmp_path, [5, 10, 15], alone)
    found = newest_whole(tmp_path, alone)

    assert aside == tmp_path / "previous-1"
    assert _names(tmp_path) == ["previous-1", "step-10", "step-15"]
    assert _names(aside) == ["step-290", "step-300"]
    assert found is not None
    assert found.step == 15


def test_a_fresh_run_that_is_killed_at_once_has_moved_all(
    tmp_path: Path, alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next run would go on from what is left of the old one."""
    _saved(tmp_path, [1, 2], alone)
    ask_fresh(tmp_path)
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if path.name == "step-2":
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            set_run_aside(tmp_path)
    left = _names(tmp_path)
    set_run_aside(tmp_path)  # as every run does first

    assert "step-2" in left
    assert newest_whole(tmp_path, alone) is None
    assert set_run_aside(tmp_path) is None


def test_damage_is_found_and_the_checkpoint_before_is_taken(tmp_path: Path, alone: Any) -> None:
    """Two bytes of a shard that flipped were loaded without a word."""
    _saved(tmp_path, [2, 4], alone)
    shard = next((tmp_path / "step-4").glob("*.distcp"))
    content = bytearray(shard.read_bytes())
    content[-700] ^= 3
    shard.write_bytes(bytes(content))
    found = newest_whole(tmp_path, alone)
    assert found is not None
    set_damaged_aside(tmp_path, list(found.damaged))

    assert found.step == 2
    assert found.damaged == {
        4: f"{shard.name} is not what was written: its checksum differs (rank 0)"
    }
    assert _names(tmp_path) == ["damaged-step-4", "step-2"]


DAMAGE = {
    "missing": ("wattree.json is missing", None),
    "deep": ("nested deeper than 64 levels", "[" * 3000),
    "cut": ("expected valid JSON", '{"format": '),
    "other": ("is damaged", '{"format": "wattree-checkpoint/2", "content": 3, "sha256": ""}'),
    "changed": ("its checksum differs", "seed"),
    "earlier": ("another version of Wattree wrote it", '{"format": "wattree-checkpoint/1"}'),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_folder_without_a_whole_checkpoint_is_refused(
    tmp_path: Path, alone: Any, kind: str
) -> None:
    """Beginning anew would lose what may be restored; every one is listed with its fault."""
    message, text = DAMAGE[kind]
    _saved(tmp_path, [2, 4], alone)
    for step in (2, 4):
        path = tmp_path / f"step-{step}" / "wattree.json"
        if text is None:
            path.unlink()
        else:
            changed = path.read_text().replace('"seed": 1', '"seed": 2')
            path.write_text(changed if text == "seed" else text)
    with pytest.raises(RunError) as caught:
        newest_whole(tmp_path, alone)
    told = str(caught.value)

    assert told.startswith(f"{tmp_path}: 2 problems:\n  step-4: ")
    assert told.count(message) == 2
    assert told.endswith("or start over, which moves these aside: --fresh")


def test_a_removal_that_is_cut_short_leaves_no_broken_checkpoint(
    tmp_path: Path, alone: Any
) -> None:
    """What a kill left of one that was removed or written goes with the next that is written."""
    _saved(tmp_path, [1, 2], alone)
    (tmp_path / "step-1").rename(tmp_path / ".step-1.old")
    shutil.copytree(tmp_path / "step-2", tmp_path / ".step-3.partial")
    steps = max(steps_in(tmp_path), default=None)
    _saved(tmp_path, [3], alone)

    assert steps == 2
    assert _names(tmp_path) == ["step-2", "step-3"]


def test_a_flipped_bit_is_found_or_harmless(tmp_path: Path, alone: Any, *, soaking: bool) -> None:
    """Of any file: the one before is taken, or what is loaded is what was written."""
    whole = tmp_path / "whole"
    _saved(whole, [2, 4], alone)
    silent = []
    for seed in range(500 if soaking else 60):
        chance, folder = random.Random(seed), tmp_path / "flipped"
        shutil.copytree(whole, folder)
        files = sorted(path for path in (folder / "step-4").iterdir())
        what = flip_a_bit(chance.choice(files), chance)
        found = newest_whole(folder, alone)
        assert found is not None
        into = {name: torch.zeros_like(each) for name, each in _tensors(found.step).items()}
        load_tensors(folder, found.step, into, alone)
        expected = _tensors(found.step)
        if not all(torch.equal(into[name], expected[name]) for name in expected) or (
            found.facts != {"seed": 1, "step": found.step}
        ):
            silent.append(f"seed {seed}: {what}")
        shutil.rmtree(folder)

    assert silent == []
