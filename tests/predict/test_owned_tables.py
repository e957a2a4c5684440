"""Ranks that own unlike parts of a model have the same tasks, whatever the software."""

from __future__ import annotations

import pytest

from wattree import job_from_mapping, simulate


@pytest.mark.parametrize("software", ["pytorch", "generic"])
def test_tables_on_some_ranks_alone_can_be_executed(software: str) -> None:
    """Gradients that go with the update went on ranks with tables alone, and tasks differed."""
    job = job_from_mapping(
        {
            "model": "dlrm-proteus",
            "data": {"global_batch": 2048},
            "precision": "tf32",
            "optimizer": "sgd",
            "software": software,
            "cluster": {"node": "dgx-a100"},
            "strategy": {"dp": 8, "tables": "auto"},
        },
        "job.yaml",
    )

    found = simulate(job).result

    assert found.memory.peak_bytes > 0
