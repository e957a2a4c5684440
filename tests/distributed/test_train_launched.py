"""`wattree train` as several processes on a device: killed, and started again."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.distributed.ranks import Forked, start_python
from wattree.runtime.checkpoint.folder import steps_in
from wattree.runtime.colocation.clean import clear_orphans
from wattree.runtime.colocation.processes import end
from wattree.runtime.colocation.state import state_root, states_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
ROOT = Path(__file__).resolve().parents[2]
JOB = """
model:
  ffn: {{width: 32, depth: 2, inputs: 64, outputs: 10, loss: cross_entropy}}
data: {{global_batch: 32, source: digits}}
precision: fp32
optimizer: adam
cluster: {{node: ft-2000-plus-node}}
strategy: {{preset: ddp, dp: 1, micro_batch: 16, processes_per_device: 2}}
training: {{steps: {steps}, seed: 1, learning_rate: 1e-3, checkpoint: {{dir: {dir}, every: 10}}}}
"""


@pytest.fixture
def home() -> Iterator[dict[str, str]]:
    """Return an environment in which launchers keep their state in a folder of this test."""
    with tempfile.TemporaryDirectory() as base:
        told = {"XDG_RUNTIME_DIR": base, "XDG_CONFIG_HOME": base, "PYTHONPATH": str(ROOT / "src")}
        yield os.environ | told
        root = state_root(told)
        end(state.launcher for state in states_in(root))
        clear_orphans(root)


def _train(home: dict[str, str], folder: Path, steps: int, *options: str) -> Forked:
    job = folder / f"{steps}.yaml"
    job.write_text(JOB.format(steps=steps, dir=folder / "saved"))
    words = ["-m", "wattree", "train", str(job), "--device", "cpu", *options]
    return start_python(words, Path(os.devnull), home, errors=folder / "said.txt")


def _losses(home: dict[str, str], folder: Path, steps: int) -> list[float]:
    done = _train(home, folder, steps, "--json", str(folder / "result.json"))
    assert done.wait(timeout=600) == 0, (folder / "said.txt").read_text()
    result = json.loads((folder / "result.json").read_text())
    losses: list[float] = result["training"]["losses"]
    return losses


def test_a_job_that_was_killed_goes_on_from_its_checkpoint(
    home: dict[str, str], tmp_path: Path
) -> None:
    """A rank is killed in the middle: the job ends soon, and its losses are as if it had not."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    whole.mkdir()
    launcher = _train(home, killed, 1_000_000)
    while max(steps_in(killed / "saved"), default=0) < 20:  # one alone may have gone again
        assert launcher.poll() is None
        time.sleep(0.005)
    (state,) = states_in(state_root(home))
    victim = next(each.process for each in state.recorded() if each.what == "rank 1")
    os.kill(victim.pid, signal.SIGKILL)
    assert launcher.wait(timeout=600) == 1
    assert "wattree: rank 1 was killed by signal 9 (SIGKILL)" in (killed / "said.txt").read_text()
    assert not state.folder.exists()

    last = max(int(path.name.removeprefix("step-")) for path in (killed / "saved").glob("step-*"))
    resumed = _losses(home, killed, last + 10)

    assert len(resumed) == last + 10
    assert resumed == _losses(home, whole, last + 10)
