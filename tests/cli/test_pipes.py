"""Jobs from standard input."""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from wattree.cli.job_file import PIPED, read_job
from wattree.job import WorkloadKind

JOB = Path("examples/llama-3.1-8b-generate.yaml").read_bytes()


def piped(given: bytes, *arguments: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Return what a command says of what is piped into it."""
    return subprocess.run(
        [sys.executable, "-m", "wattree", *arguments],
        input=given,
        capture_output=True,
        check=False,
        cwd=folder,
        timeout=600,
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


def test_training_needs_a_file(tmp_path: Path) -> None:
    """Standard input can be read once, and each rank reads the job."""
    job = Path("examples/phantom-laptop.yaml").read_bytes()

    found = piped(job, "train", "-", folder=tmp_path)

    assert found.returncode == 2
    assert "JOB: found '-', expected a file: every rank reads it" in found.stderr.decode()


def test_every_other_path_of_that_name_is_a_file(tmp_path: Path) -> None:
    """What jobs alone take would be cut, or read twice, elsewhere."""
    for arguments in (("simulate", "-", "--calibration", "-"), ("compare", "-", "-")):
        found = piped(JOB, *arguments, folder=tmp_path)
        assert found.returncode == 2
        assert "-: there is no such file; check the path" in found.stderr.decode()


def test_streams_without_bytes_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that call the command may replace standard input."""
    monkeypatch.setattr(sys, "stdin", StringIO(JOB.decode()))

    assert read_job(PIPED).workload is WorkloadKind.GENERATE
