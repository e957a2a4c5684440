"""The job of a command: read it, and print its warnings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from wattree.cli.output import tell

if TYPE_CHECKING:
    from wattree.job import Job


def read_job(path: Path, *, without: tuple[str, ...] = (), reads_strategy: bool = True) -> Job:
    """Return the job of a file and print its warnings on standard error.

    Args:
        path: The file.
        without: Beginnings of warnings that are left out.
        reads_strategy: As for `load_job`.

    Raises:
        JobError: The file describes no possible job.
    """
    import wattree

    job = wattree.load_job(path, reads_strategy=reads_strategy)
    print_warnings(path, (each for each in job.warnings if not each.startswith(without)))
    return job


def print_warnings(path: Path, warnings: Iterable[str]) -> None:
    """Print on standard error which settings of a job have no effect."""
    for warning in warnings:
        tell(f"wattree: {path}: warning: {warning}")
