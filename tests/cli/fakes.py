"""A small job, and library functions that answer at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.samples import sample_result, sample_trace

__all__ = ["JOB", "Fake", "fake_job", "prediction", "raising"]
JOB = "examples/llama-3.1-8b-dgx-h100.yaml"

Fake = Callable[..., None]


def fake_job(path: Path, *, reads_strategy: bool = True) -> SimpleNamespace:
    """Return as much of a job as the commands themselves look at."""
    del reads_strategy
    model = SimpleNamespace(name="gpt2")
    training = SimpleNamespace(steps=1)
    job = SimpleNamespace(
        source=str(path),
        warnings=(),
        strategy="auto",
        model=model,
        software="auto",
        training=training,
    )
    job.lasting = lambda **_: job
    return job


def prediction(**changes: Any) -> SimpleNamespace:
    """Return what `wattree.simulate` does."""
    return SimpleNamespace(
        result=sample_result(**changes),
        trace=sample_trace(),
        power=((0.0, 5000.0), (2.0, 6000.0)),
        warnings=(),
        shared_fabric_step=None,
        curves={},
        strategy=None,
    )


def raising(error: BaseException) -> Callable[..., Any]:
    """Return a function that fails."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail
