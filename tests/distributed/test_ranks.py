"""The starter of ranks tells results, failures and hangs; other tests rely on it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.distributed.ranks import RankError, run_ranks

HERE = "tests/distributed/test_ranks.py"


def rank_and_sum(factor: int) -> list[int]:
    """Return this rank, and the sum of all of them times a factor; runs on ranks."""
    import torch
    import torch.distributed as dist

    total = torch.tensor(dist.get_rank() * factor)
    dist.all_reduce(total)
    return [dist.get_rank(), int(total)]


def fail_on_rank_1(folder: str) -> None:
    """Fail once both ranks are here, or wait for the rank that fails; runs on ranks."""
    Path(folder, f"pid-{os.environ['RANK_NAME']}-{os.getpid()}").touch()
    import torch.distributed as dist

    if dist.get_rank() == 1:
        while len(list(Path(folder).glob("pid-*"))) < dist.get_world_size():
            time.sleep(0.01)
        raise RuntimeError("a defect of rank 1")
    time.sleep(600)


def test_results_come_in_the_order_of_ranks() -> None:
    """Ranks talk to each other, and each hands back what it found."""
    assert run_ranks(2, f"{HERE}:rank_and_sum", {"factor": 3}) == [[0, 3], [1, 3]]


def test_the_first_failure_is_told_and_its_peers_are_ended(tmp_path: Path) -> None:
    """A hanging peer must neither hide the message nor outlive the test."""
    begin_s = time.monotonic()

    with pytest.raises(RankError, match="a defect of rank 1") as caught:
        run_ranks(
            2,
            f"{HERE}:fail_on_rank_1",
            {"folder": str(tmp_path)},
            environment={"RANK_NAME": "x"},
        )

    assert caught.value.rank == 1
    assert time.monotonic() - begin_s < 500
    pids = [int(path.name.rsplit("-", 1)[1]) for path in tmp_path.glob("pid-x-*")]
    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_rank_that_does_not_end_is_told(tmp_path: Path) -> None:
    """Time limits are the last resort against hangs."""
    with pytest.raises(RankError, match="did not end in time"):
        run_ranks(1, f"{HERE}:wait", {"folder": str(tmp_path)}, limit_s=4.0, start=False)


def wait(folder: str) -> None:
    """Wait longer than any test; runs on ranks."""
    Path(folder, "here").touch()
    time.sleep(600)
