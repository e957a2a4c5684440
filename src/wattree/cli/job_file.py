"""The job of a command, from a file or standard input: read it, and print its warnings."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from wattree.cli.output import tell

if TYPE_CHECKING:
    from wattree.job import Job

#: Means standard input, for jobs alone: everywhere else it is a file of that name.
PIPED = Path("-")


def read_job(path: Path, *, without: tuple[str, ...] = (), reads_strategy: bool = True) -> Job:
    """Return the job of a file and print its warnings on standard error.

    Args:
        path: The file.
        without: Beginnings of warnings that are left out.
        reads_strategy: As for `load_job`.

    Raises:
        JobError: The file describes no possible job.
    """
    job = load(path, reads_strategy=reads_strategy)
    print_warnings(path, (each for each in job.warnings if not each.startswith(without)))
    return job


def load(path: Path, *, reads_strategy: bool = True) -> Job:
    """Return the job of a file; arguments and errors as of `read_job`."""
    import wattree

    if path != PIPED:
        return wattree.load_job(path, reads_strategy=reads_strategy)
    keys = keys_of(path)
    return wattree.job_from_mapping(keys if reads_strategy else keys | {"strategy": "auto"}, "-")


def keys_of(path: Path, *, folder: Path | None = None) -> dict[str, Any]:
    """Return the keys of the job; arguments and errors as of `job.written.mapping_of`."""
    from wattree.files import text_of, yaml_of
    from wattree.job.written import mapping_of

    if path != PIPED:
        return mapping_of(path, folder=folder)
    return mapping_of(yaml_of(text_of(_piped(sys.stdin), "-"), "-"), folder=folder)


@cache
def _piped(stream: TextIO | None) -> bytes:
    """Return what standard input holds, to all who ask: it can be read once.

    Raises:
        JobError: It is a terminal, or holds nothing.
    """
    from wattree.errors import JobError
    from wattree.files import LIMIT_BYTES

    found: str | bytes = b""
    if stream is not None and not stream.isatty():
        found = getattr(stream, "buffer", stream).read(LIMIT_BYTES + 1)
    if not found:
        why = "standard input holds nothing; pipe a file into the command, or name one"
        raise JobError("-", [why])
    return found if isinstance(found, bytes) else found.encode()


def print_warnings(path: Path, warnings: Iterable[str]) -> None:
    """Print on standard error which settings of a job have no effect."""
    for warning in warnings:
        tell(f"wattree: {path}: warning: {warning}")
