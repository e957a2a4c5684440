"""Jobs from standard input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path("examples/llama-3.1-8b-generate.yaml").read_bytes()


def piped(given: bytes, *arguments: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Return what a command says of what is piped into it."""
    return subprocess.run(
        [sys.executable, "-m", "wattree", *arguments],
        input=given,
        capture_output=True,
        check=False,
        cwd=folder,
        timeout=300,
    )


def test_a_job_is_read_from_standard_input(tmp_path: Path) -> None:
    """As often as a command needs it; its relative paths start in the current folder."""
    found = piped(JOB, "plan", "-", "--json", "-", "--out", "best.yaml", folder=tmp_path)

    assert found.returncode == 0, found.stderr.decode()
    assert json.loads(found.stdout)["best"]["workload"] == "generate"
    assert (tmp_path / "best.yaml").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (b"", "-: standard input holds nothing; pipe a file into the command"),
        (b"\0" * (2 << 20), "-: found 1048577 B, expected at most 1048576 B"),
        (b"\xff\xfe\xff", "-: found byte 0xff at 0, expected UTF-8 text"),
        (b"axes: 1\nworkloads: 2\n", "-: this is a design study, expected a job"),
    ],
)
def test_what_is_no_job_is_refused(given: bytes, message: str, tmp_path: Path) -> None:
    """As files are."""
    found = piped(given, "check", "-", folder=tmp_path)

    assert found.returncode == 2
    assert message in found.stderr.decode()
