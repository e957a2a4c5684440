"""Gradients averaged by mpi4py under a real mpirun, against gloo; skipped where there is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("mpi4py")

import numpy as np

from tests.distributed.warm import warm_python
from wattree.runtime.reduce.mpi import mpi_problem

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun")
def test_averages_of_mpi_are_those_of_gloo(tmp_path: Path) -> None:
    """To the last bits in float64, and exactly where both round once."""
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    command += [warm_python(), str(ROOT / "tests/runtime/mpi_program.py"), str(tmp_path)]
    variables = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }

    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=600, check=False
    )

    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"found-{rank}").read_text()) for rank in (0, 1))
    assert first == second
    assert np.allclose(first["mpi float64"], first["flat float64"], rtol=1e-14)
    assert np.allclose(first["mpi float32"], first["flat float32"], rtol=1e-6)
    assert first["mpi bfloat16"] == first["flat bfloat16"]
    assert first["mpi compressed"] == first["flat compressed"]


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4"}, ""),
        ({"PMI_SIZE": "4"}, ""),
        (
            {"OMPI_COMM_WORLD_SIZE": "2"},
            "the reduction 'mpi' needs every rank to be a process of mpirun (mpirun -n RANKS …), "
            "not of a launcher that it starts: MPI has 2, the job 4 ranks",
        ),
        (
            {},
            "the reduction 'mpi' needs every rank to be a process of mpirun (mpirun -n RANKS …), "
            "not of a launcher that it starts: found none of its variables",
        ),
    ],
)
def test_ranks_that_are_not_of_mpi_are_refused(environment: dict[str, str], problem: str) -> None:
    """Before MPI is started, which would not return."""
    assert mpi_problem(4, environment) == problem
