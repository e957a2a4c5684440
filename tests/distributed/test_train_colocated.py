"""`wattree train` with several processes on a device, against one process on each."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.distributed.ranks import run_ranks


def test_processes_of_a_device_divide_its_batch_and_its_traffic(tmp_path: Path) -> None:
    """Losses of the same steps are the same; only leaders send to the other device."""
    found = run_ranks(
        4,
        "tests/distributed/train_cases.py:colocated_paths",
        {"folder": str(tmp_path)},
        start=False,
    )[0]
    *alone, sent_by_four = found["1, fixed-global"]
    *shared, sent_by_two = found["2, fixed-global"]

    assert shared == pytest.approx(alone, rel=1e-6)
    assert found["2, fixed-per-process"][:-1] != pytest.approx(alone, rel=1e-2)
    # Of each rank, on average: 2 (N - 1) / N of the gradients, from each of N ranks.
    assert 4 * sent_by_four / (2 * (4 - 1)) == 4 * sent_by_two / (2 * (2 - 1))
