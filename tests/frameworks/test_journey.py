"""The page of a Trainer user does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.frameworks

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^<!-- journey: trainer -->\n```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_a_trainer_user_exports_and_runs_two_processes(tmp_path: Path) -> None:
    """Every command of the page succeeds, one after another."""
    pytest.importorskip("accelerate")
    blocks = _BLOCK.findall((ROOT / "docs" / "trainer-journey.md").read_text(encoding="utf-8"))
    launchers = {
        "wattree": f'exec "{sys.executable}" -m wattree "$@"',
        "torchrun": f'exec "{sys.executable}" -m torch.distributed.run "$@"',
    }
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, line in launchers.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{line}\n")
        (folder / name).chmod(0o755)
    own = {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(blocks)],
        cwd=tmp_path,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert "train_loss" in done.stdout + done.stderr
    assert re.search(r"^[0-9.e-]+ s a step$", done.stdout, re.MULTILINE)
    assert (tmp_path / "next" / "launch.sh").is_file()
