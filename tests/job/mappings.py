"""A small job as a mapping, and what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from wattree.errors import JobError
from wattree.job import job_from_mapping

__all__ = ["mapping", "problems"]


def mapping(**changes: Any) -> dict[str, Any]:
    """Return a valid job with sections replaced."""
    return {
        "model": "llama-3.1-8b",
        "data": {"sequence_length": 8192, "global_batch": 128},
        "cluster": {"node": "dgx-h100", "nodes": 1},
        **changes,
    }


def problems(**changes: Any) -> tuple[str, ...]:
    """Return what is said about a job with sections replaced."""
    with pytest.raises(JobError) as caught:
        job_from_mapping(mapping(**changes), "job.yaml")
    return caught.value.problems
