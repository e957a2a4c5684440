"""What becomes of results where they cannot be shown: closed, full or narrow outputs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from wattree.cli.main import run

_JOB = """
model: gpt2
data: {sequence_length: 512, global_batch: 16}
cluster: {node: dgx-a100}
strategy: {sharding: zero1, micro_batch: 2}
"""


def _printed(tmp_path: Path, tail: str) -> subprocess.CompletedProcess[str]:
    """Return what `check` does in a shell that ends its line with `tail`."""
    (tmp_path / "job.yaml").write_text(_JOB)
    command = f"'{sys.executable}' -m wattree check job.yaml {tail}"
    return subprocess.run(
        ["/bin/sh", "-c", command],
        capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path,
    )  # fmt: skip


def test_a_closed_output_is_one_that_no_one_reads(tmp_path: Path) -> None:
    """Its exit code is still wanted; once there was a traceback."""
    found = _printed(tmp_path, ">&-")

    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_a_full_disk_is_a_message(tmp_path: Path) -> None:
    """It is no defect."""
    found = _printed(tmp_path, "> /dev/full")

    assert found.returncode == 2
    assert found.stderr == (
        "wattree: standard output: cannot be written (No space left on device)\n"
    )


@pytest.mark.parametrize("columns", ["0", "20", "40"])
def test_a_narrow_terminal_loses_no_figure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    columns: str,
) -> None:
    """Terminals wrap lines; tables that were squeezed cut shares off."""
    path = tmp_path / "job.yaml"
    path.write_text(_JOB)
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["catalog", "nodes"]) == 0
    wide = capsys.readouterr().out

    monkeypatch.setenv("COLUMNS", columns)
    assert run(["catalog", "nodes"]) == 0
    assert capsys.readouterr().out == wide
