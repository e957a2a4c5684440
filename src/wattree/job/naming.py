"""Errors about a strategy name the job that it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from wattree.errors import StrategyError
from wattree.job.job import Job


@contextmanager
def naming(job: Job) -> Iterator[None]:
    """Name the job's file and the key of each misfit in errors about its strategy.

    Raises:
        StrategyError: In place of one that says what is wrong and not where.
    """
    try:
        yield
    except StrategyError as error:
        if error.source:
            raise
        raise StrategyError(error.misfits, source=job.source) from error
