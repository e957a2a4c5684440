"""The executed job as a file of its own, independent of the working folder."""

from __future__ import annotations

from pathlib import Path

from wattree.job import Job
from wattree.job.written import job_yaml, mapping_of
from wattree.strategy import StrategyOptions
from wattree.strategy.described import describe_options


def job_text(path: Path, job: Job, preset: str | None) -> str:
    """Return a job file as text, its paths made absolute.

    Args:
        path: The file that was read.
        preset: What it was run with in place of its own strategy; None for its own.
    """
    mapping = mapping_of(path)
    mapping.setdefault("precision", job.precision)
    saved = job.training.checkpoint
    if saved is not None:
        mapping["training"]["checkpoint"]["dir"] = str(saved.folder.absolute())
    options = job.strategy
    if isinstance(options, StrategyOptions) and (preset or options.colocation.is_several):
        mapping["strategy"] = describe_options(options)
    return job_yaml(mapping)
