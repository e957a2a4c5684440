"""What tests of commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wattree
from tests.cli.fakes import Fake, fake_job


@pytest.fixture(autouse=True)
def _no_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels count as compiled: whichever test came first would see that announced."""
    monkeypatch.setattr("wattree.sim.kernels_are_compiled", lambda: True)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Replace library functions by ones that answer at once."""
    monkeypatch.setenv("COLUMNS", "100")

    def put(**functions: Any) -> None:
        monkeypatch.setattr(wattree, "load_job", fake_job, raising=False)
        for name, function in functions.items():
            monkeypatch.setattr(wattree, name, function, raising=False)

    return put


@pytest.fixture
def job_file(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a small job file; its keys may be replaced."""

    def written(**changes: Any) -> Path:
        job = {
            "model": "gpt2",
            "data": {"sequence_length": 512, "global_batch": 16},
            "cluster": {"node": "dgx-a100"},
            "strategy": "ddp",
            **changes,
        }
        path = tmp_path / "job.yaml"
        path.write_text(json.dumps(job))  # JSON is YAML too
        return path

    return written
