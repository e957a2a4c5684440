"""The program that measures several processes on an accelerator, tried on a processor."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks import gpu_colocation
from tests.distributed.warm import warm_python


def test_it_measures_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One network, tiny: every way has a line with figures, and the file names what it ran on."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "executable", warm_python())
    tiny = gpu_colocation.Job(model="mlp", size=8, batch=8, workers=0)
    monkeypatch.setattr(gpu_colocation, "JOBS", {"launches": tiny})
    out = tmp_path / "found.json"
    words = ["--device", "cpu", "--seconds", "0.2", "--out", str(out)]
    assert gpu_colocation.main(words) == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["device"] == "CPU"
    lines = found["lines"]
    assert [line["setting"] for line in lines] == ["q = 1", "q = 2"]
    for line in lines:
        assert not line["fault"]
        assert line["rate"] > 0
        assert line["predicted"] > 0


def test_without_an_accelerator_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, and is no failure."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = tmp_path / "found.json"
    assert gpu_colocation.main(["--out", str(out)]) == 0
    assert not out.exists()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs cores to be counted")
def test_predictions_keep_to_bounds() -> None:
    """The closed queue's gains in turns; with MPS more, never above the number of processes."""
    profile = {
        "samples": 32.0,
        "step_s": 0.1,
        "waiting_s": 0.0,
        "device_s": 0.043,
        "kernels": 1e6,
    }
    turns = [gpu_colocation.predicted(profile, q, "time-sliced", 0.25) for q in (1, 2, 3, 4)]
    assert turns[0] == pytest.approx(1.0)
    assert turns == pytest.approx([1, 1.69, 2.07, 2.25], abs=0.01)  # mean-value analysis
    many = [gpu_colocation.predicted(profile, q, "mps", 0.25) for q in (2, 3, 4)]
    assert all(math.isfinite(gain) for gain in many)
    assert all(
        turn < gain <= q + 1e-9 for turn, gain, q in zip(turns[1:], many, (2, 3, 4), strict=True)
    )
