"""What `make gpu` says before it starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import gpu_ready


def _program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_without_a_device_it_is_ready_to_do_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a missing driver nor one that finds nothing is a failure."""
    monkeypatch.setenv("PATH", str(tmp_path))
    codes = [gpu_ready.main()]
    _program(tmp_path, "nvidia-smi", "echo failed; exit 9")
    codes.append(gpu_ready.main())

    assert codes == [0, 0]
    assert capsys.readouterr().err.count("no NVIDIA device") == 2


def test_all_that_is_missing_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not one thing after each of several minutes."""
    _program(tmp_path, "nvidia-smi", "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("torch", "pynvml"):
        monkeypatch.setitem(sys.modules, name, None)
    code = gpu_ready.main()
    told = capsys.readouterr().err

    assert code == 2
    assert [line.split(",")[0] for line in told.splitlines()] == [
        "missing: torch",
        "missing: pynvml",
        "missing: nvidia-cuda-mps-control",
    ]
