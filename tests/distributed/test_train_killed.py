"""Training that is killed at any step goes on as if nothing had happened."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.distributed.ranks import Forked, start_python
from wattree.runtime.checkpoint.folder import steps_in

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
STEPS = 60
JOB = f"""
model: {{ffn: {{width: 12, depth: 2, activation: tanh}}}}
data: {{global_batch: 4, source: synthetic-regression}}
precision: fp32
optimizer: adam
cluster: {{node: 2x-epyc-7742}}
strategy: {{preset: phantom, tp: 2, ghosts: 2}}
training: {{steps: {STEPS}, seed: 3, learning_rate: RATE, checkpoint: {{dir: FOLDER, every: 3}}}}
"""


#: More than are trained until a kill comes, on any machine.
ENDLESS = 1_000_000


def _job(place: Path, folder: str = "saved", rate: str = "0.01", steps: int = STEPS) -> Path:
    path = place / "job.yaml"
    text = JOB.replace("FOLDER", folder).replace("RATE", rate)
    path.write_text(text.replace(f"steps: {STEPS}", f"steps: {steps}"))
    return path


def _started(place: Path, *words: str, said: str = "said.txt") -> Forked:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WATTREE_")}
    return start_python(
        ["-m", "wattree", "train", "job.yaml", "--quiet", *words],
        place / said,
        {**kept, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        folder=place,
    )


def _losses(place: Path, *words: str) -> dict[str, Any]:
    """Train to the end; return what came of it."""
    command = _started(place, "--json", "result.json", *words)
    assert command.wait(600) == 0, (place / "said.txt").read_text()
    found: dict[str, Any] = json.loads((place / "result.json").read_text())["training"]
    return found


def _killed(place: Path, folder: Path, beyond: int, *words: str) -> int:
    """Train and kill the command once the last step saved is beyond the given one; return it."""
    command = _started(place, *words)
    until_s = time.monotonic() + 600
    # A fresh run moves aside what was saved before.
    before = [folder / "previous-1"] if words else []
    while not (all(path.is_dir() for path in before) and beyond < max(steps_in(folder), default=0)):
        assert time.monotonic() < until_s, (place / "said.txt").read_text()
        assert command.poll() is None, (place / "said.txt").read_text()
        time.sleep(0.001)
    command.send_signal(signal.SIGKILL)
    command.wait(600)
    return max(steps_in(folder))


def test_losses_after_kills_are_those_of_one_run(tmp_path: Path, *, soaking: bool) -> None:
    """To the bit; kills come while steps are computed and while checkpoints are written."""
    chance, different = random.Random(7), []
    for number in range(25 if soaking else 1):
        folder, reached = tmp_path / f"killed-{number}", 0
        _job(tmp_path, folder.name, steps=ENDLESS)
        for beyond in chance.sample(range(STEPS // 2), 2):
            reached = _killed(tmp_path, folder, reached + beyond)
        _job(tmp_path, folder.name, steps=reached + 6)
        found = _losses(tmp_path)["losses"]
        _job(tmp_path, f"whole-{number}", steps=reached + 6)
        if len(found) != reached + 6 or found != _losses(tmp_path)["losses"]:
            different.append(number)

    assert different == []


def test_a_fresh_run_that_is_killed_is_gone_on_from(tmp_path: Path) -> None:
    """Not the run before, whose steps are higher; that one is moved aside, not deleted."""
    folder = tmp_path / "saved"
    _job(tmp_path)
    _losses(tmp_path)
    _job(tmp_path, rate="0.02")
    refused = _started(tmp_path)
    code, told = refused.wait(600), (tmp_path / "said.txt").read_text()
    _job(tmp_path, rate="0.02", steps=ENDLESS)
    reached = _killed(tmp_path, folder, 0, "--fresh")
    _job(tmp_path, rate="0.02", steps=reached + 6)
    after = _losses(tmp_path)
    _job(tmp_path, "other", rate="0.02", steps=reached + 6)

    assert code == 2
    assert "learning_rate: the checkpoint has 0.01, the job 0.02" in told
    assert (tmp_path / "saved" / "previous-1" / f"step-{STEPS}").is_dir()
    assert reached <= after["first_step"] < reached + 6
    assert after["losses"] == _losses(tmp_path)["losses"]


def test_a_second_run_of_a_folder_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    """All its ranks end with one message that names the first; nothing is deleted."""
    folder = tmp_path / "saved"
    _job(tmp_path, steps=ENDLESS)
    first = _started(tmp_path)
    try:
        _await_step(folder, 3, first)
        with _stopped(first):  # it has the folder all the same, and the second one the processor
            second = _started(tmp_path, "--fresh", said="second.txt")
            code, told = second.wait(600), (tmp_path / "second.txt").read_text()
        reached = max(steps_in(folder), default=0)
        _await_step(folder, reached + 3, first)
    finally:
        first.send_signal(signal.SIGTERM)
        ended = first.wait(600)

    assert code == 2
    assert told.count("saved: is in use by process ") == 1
    assert ended == 130
    assert {path.name[:5] for path in folder.iterdir()} == {"step-"}


@contextlib.contextmanager
def _stopped(command: Forked) -> Iterator[None]:
    """Let the ranks of a command wait while the block runs."""
    listed = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
    assert len(listed) == 2
    for rank in listed:
        os.kill(int(rank), signal.SIGSTOP)
    try:
        yield
    finally:
        for rank in listed:
            os.kill(int(rank), signal.SIGCONT)


def _await_step(folder: Path, step: int, command: Forked) -> None:
    until_s = time.monotonic() + 600
    while max(steps_in(folder), default=0) < step:
        assert time.monotonic() < until_s
        assert command.poll() is None
        time.sleep(0.01)
