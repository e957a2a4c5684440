"""The job of a command: read, its model found beside it, its warnings told, its errors named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from wattree.errors import JobError, StrategyError

if TYPE_CHECKING:
    from wattree.job import Job

__all__ = ["naming", "read_job"]

#: Misfits that say themselves which key of a job they are about.
_SECTIONS = ("cluster.", "data.", "model.", "strategy.")


def read_job(path: Path) -> Job:
    """Return the job of a file and print its warnings on standard error.

    A model without a slash in it that the catalogue does not have is looked for beside the file.

    Raises:
        JobError: The file describes no possible job.
    """
    import wattree

    job = wattree.load_job(path)
    for warning in job.warnings:
        typer.echo(f"wattree: {path}: warning: {warning}", err=True)
    name = job.model.name
    if name is None or "/" in name:
        return job
    from wattree.capture import located_model

    found = located_model(name, path.parent)
    return job if found == name else replace(job, model=replace(job.model, name=found))


@contextmanager
def naming(job: Job) -> Iterator[None]:
    """Name the job's file and key in errors about its strategy.

    Raises:
        JobError: In place of an error that says what is wrong and not where.
    """
    try:
        yield
    except StrategyError as error:
        lines = [_misfit(place, reason) for place, reason in sorted(error.misfits.items())]
        raise JobError(job.source, lines) from error


def _misfit(place: str, reason: str) -> str:
    """Return what does not fit; paths of operators stand under the strategy that splits them."""
    return f"{place}: {reason}" if place.startswith(_SECTIONS) else f"strategy: {place}: {reason}"
