"""examples/phantom_convert: loss and accuracy of converted models, over two ranks."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.distributed.warm import warm_python

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = "examples/phantom_convert/convert.py"


@pytest.mark.slow
def test_more_ghosts_lose_less_and_tuning_wins_back() -> None:
    """Block-diagonal is worst; calibration and a few steps help at every number of ghosts."""
    program = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    example = [EXAMPLE, "--ghosts", "0", "2", "32", "--steps", "150"]
    done = subprocess.run(
        [warm_python(), *program, *example, "--tune", "20"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"^ +(\d+) .*", done.stdout, re.MULTILINE)
    losses = {
        int(line.split()[0]): [float(each) for each in re.findall(r"(\d+\.\d{3}) ", line)]
        for line in done.stdout.splitlines()
        if line.startswith("  ")
    }
    dense = float(re.findall(r"accuracy +(\d+\.\d{3}) ", done.stdout)[0])

    assert lines == ["0", "2", "32"]
    for converted, calibrated, _, tuned in losses.values():
        assert calibrated <= converted + 2e-3
        assert tuned < converted + 2e-3
    assert losses[0][0] > losses[2][0] > losses[32][0]
    assert losses[32][1] == pytest.approx(dense, rel=0.2)


@pytest.mark.parametrize(
    ("before", "notes"),
    [
        ("sys.modules['torch'] = None; ", "error: phantom_convert needs the package 'torch'"),
        ("", "needs its ranks: start it by torchrun"),
    ],
)
def test_what_it_lacks_is_said_without_a_traceback(before: str, notes: str) -> None:
    """PyTorch, or a launcher."""
    program = f"import runpy, sys; {before}runpy.run_path({EXAMPLE!r}, run_name='__main__')"
    alone = {key: value for key, value in os.environ.items() if key != "RANK"}
    done = subprocess.run(
        [warm_python(), "-c", program],
        cwd=ROOT,
        env=alone,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode != 0
    assert notes in done.stderr
    assert "Traceback" not in done.stderr
