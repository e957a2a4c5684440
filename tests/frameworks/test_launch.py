"""Scripts of libraries with launchers of their own, as several processes on a device."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.frameworks

SCRIPTS = Path(__file__).with_name("scripts")
WATTREE = ["-m", "wattree", "launch", "-q", "2", "--device", "cpu", "--", sys.executable]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_two_processes_on_a_device_train_what_two_ranks_train(library: str) -> None:
    """Each takes half of the script's batch, where ranks of their own are given that half."""
    pytest.importorskip(library)
    if library == "lightning":
        _skip_without_mpi()
    script = str(SCRIPTS / f"plain_{library}.py")

    shared = _told([*WATTREE, script, "8"])
    ranks = _told([*TORCHRUN, script, "4"])

    assert shared == ranks
    assert shared.startswith("2 ranks, 8 steps, ")


def _skip_without_mpi() -> None:
    """Skip where mpi4py is installed without MPI: Lightning imports it to see what started it."""
    if importlib.util.find_spec("mpi4py") is not None:
        words = [sys.executable, "-c", "from mpi4py import MPI"]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("mpi4py finds no MPI library, and Lightning asks it")


def _told(words: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=280, check=False
    )
    found = re.findall(r"\d+ ranks, \d+ steps, \S+", done.stdout)
    assert len(found) == 1, done.stdout + done.stderr
    return str(found[0])
