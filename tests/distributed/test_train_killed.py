"""Training that is killed at any step goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import time
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


def _job(place: Path, folder: str = "saved", rate: str = "0.01") -> Path:
    path = place / "job.yaml"
    path.write_text(JOB.replace("FOLDER", folder).replace("RATE", rate))
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
    assert command.wait(200) == 0, (place / "said.txt").read_text()
    found: dict[str, Any] = json.loads((place / "result.json").read_text())["training"]
    return found


def _killed(place: Path, folder: Path, beyond: int, *words: str) -> None:
    """Train and kill the command once the last step saved is beyond the given one."""
    command = _started(place, *words)
    until_s = time.monotonic() + 150
    while not beyond < max(steps_in(folder), default=0) < STEPS and command.poll() is None:
        assert time.monotonic() < until_s, (place / "said.txt").read_text()
        time.sleep(0.001)
    if command.poll() is None:
        command.send_signal(signal.SIGKILL)
    command.wait(60)


def test_losses_after_kills_are_those_of_one_run(tmp_path: Path, *, soaking: bool) -> None:
    """To the bit; kills come while steps are computed and while checkpoints are written."""
    _job(tmp_path, "whole")
    whole = _losses(tmp_path)["losses"]
    chance, different = random.Random(7), []
    for number in range(25 if soaking else 1):
        folder = tmp_path / f"killed-{number}"
        _job(tmp_path, folder.name)
        for beyond in sorted(chance.sample(range(STEPS - 6), 2)):
            _killed(tmp_path, folder, beyond)
        if _losses(tmp_path)["losses"] != whole:
            different.append(number)

    assert len(whole) == STEPS
    assert different == []


def test_a_fresh_run_that_is_killed_is_gone_on_from(tmp_path: Path) -> None:
    """Not the run before, whose steps are higher; that one is moved aside, not deleted."""
    folder = tmp_path / "saved"
    _job(tmp_path)
    _losses(tmp_path)
    _job(tmp_path, rate="0.02")
    refused = _started(tmp_path)
    code, told = refused.wait(200), (tmp_path / "said.txt").read_text()
    _killed(tmp_path, folder, 0, "--fresh")
    reached = max(steps_in(folder), default=None)
    after = _losses(tmp_path)
    _job(tmp_path, "other", rate="0.02")

    assert code == 2
    assert "learning_rate: the checkpoint has 0.01, the job 0.02" in told
    assert (tmp_path / "saved" / "previous-1" / f"step-{STEPS}").is_dir()
    assert reached is not None
    assert 0 < after["first_step"] < STEPS
    assert after["losses"] == _losses(tmp_path)["losses"]


def test_a_second_run_of_a_folder_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    """All its ranks end with one message that names the first; nothing is deleted."""
    folder = tmp_path / "saved"
    path = _job(tmp_path)
    path.write_text(path.read_text().replace(f"steps: {STEPS}", "steps: 1000000"))
    first = _started(tmp_path)
    try:
        _await_step(folder, 3, first)
        second = _started(tmp_path, "--fresh", "--timeout", "2 s", said="second.txt")
        code, told = second.wait(60), (tmp_path / "second.txt").read_text()
        reached = max(steps_in(folder), default=0)
        _await_step(folder, reached + 3, first)
    finally:
        first.send_signal(signal.SIGTERM)
        ended = first.wait(60)

    assert code == 2
    assert told.count("saved: is in use by process ") == 1
    assert ended == 130
    assert {path.name[:5] for path in folder.iterdir()} == {"step-"}


def _await_step(folder: Path, step: int, command: Forked) -> None:
    until_s = time.monotonic() + 60
    while max(steps_in(folder), default=0) < step:
        assert time.monotonic() < until_s
        assert command.poll() is None
        time.sleep(0.01)
