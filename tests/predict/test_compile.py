"""`compile: true`: what a compiler changes of a step."""

from __future__ import annotations

from typing import Any

import pytest

from wattree.errors import JobError
from wattree.job import job_from_mapping

JOB: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "data": {"sequence_length": 2048, "global_batch": 8},
    "cluster": {"node": "dgx-h100", "nodes": 1},
    "strategy": {"preset": "fsdp", "dp": 8},
    "software": "torchtitan",
}


def test_the_key_says_what_the_habit_is_called_compiled() -> None:
    """The key and the software default are the same fact."""
    assert job_from_mapping(JOB | {"compile": True}).traits == {"compiled": True}
    assert job_from_mapping(JOB).traits == {}


def test_key_and_habit_that_contradict_each_other_are_refused() -> None:
    """Neither is taken silently."""
    with pytest.raises(
        JobError, match=r"compile: found true, but traits\.compiled differs; give one"
    ):
        job_from_mapping(JOB | {"compile": True, "traits": {"compiled": False}})


def test_what_is_neither_true_nor_false_is_refused() -> None:
    """YAML's `inductor` is a word."""
    with pytest.raises(JobError, match=r"compile: found 'inductor', expected true or false"):
        job_from_mapping(JOB | {"compile": "inductor"})
