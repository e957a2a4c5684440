"""The job of a command: read, its model found beside it, its warnings told, its errors named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from wattree.errors import JobError, ModelError, StrategyError, UnknownNameError

if TYPE_CHECKING:
    from wattree.job import Job

__all__ = ["check_recomputation", "naming", "read_job"]

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
    """Name the job's file and key in errors about its model and its strategy.

    Raises:
        JobError: In place of an error that says what is wrong and not where.
    """
    try:
        yield
    except StrategyError as error:
        lines = [_misfit(place, reason) for place, reason in sorted(error.misfits.items())]
        raise JobError(job.source, lines) from error
    except (JobError, ModelError, UnknownNameError) as error:
        if not _is_about_model(error, job):
            raise
        raise JobError(job.source, [f"model: {error}"]) from error


def check_recomputation(job: Job) -> None:
    """Refuse `recompute: block_N` where the model has no N-th layer.

    Raises:
        JobError: It would recompute the first layer alone, which nobody means.
        WattreeError: The model cannot be read.
    """
    from wattree.strategy import StrategyOptions

    options = job.strategy
    if not isinstance(options, StrategyOptions) or not options.recompute.startswith("block_"):
        return
    from wattree.predict.model import model_of

    layers, every = model_of(job).layers, int(options.recompute.removeprefix("block_"))
    if every > layers:
        problem = f"found '{options.recompute}', every {every}th layer, but the model has {layers}"
        raise JobError(
            job.source, [f"strategy.recompute: {problem}; use block_1 to block_{layers}"]
        )


def _misfit(place: str, reason: str) -> str:
    """Return what does not fit; paths of operators stand under the strategy that splits them."""
    return f"{place}: {reason}" if place.startswith(_SECTIONS) else f"strategy: {place}: {reason}"


def _is_about_model(error: JobError | ModelError | UnknownNameError, job: Job) -> bool:
    if isinstance(error, JobError):  # a file that cannot be read: the model's, or another
        return job.model.name is not None and error.source.startswith(job.model.name)
    if isinstance(error, UnknownNameError):
        return error.kind == "model"
    return not str(error).startswith(job.source)  # else it has been named where it was raised
