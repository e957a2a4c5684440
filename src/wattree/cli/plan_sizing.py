"""`wattree plan --nodes`: how many nodes a run needs."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from wattree.cli.output import NOTHING_FITS, deliver, progress_bars, tell
from wattree.errors import JobError
from wattree.units import counted

if TYPE_CHECKING:
    from wattree.cli.bill import AskedOfRun
    from wattree.job import Job
    from wattree.search.sizing import Sizing

_RANGE: Final = re.compile(r"(\d{1,7})(?:\s*\.\.\s*(\d{1,7}))?")
#: Larger clusters are a slip.
_MOST: Final = 100_000


def nodes_asked(text: str) -> Sequence[int]:
    """Return the numbers of nodes that `1..64`, `8` or `1,2,4,8` names, ascending.

    Raises:
        JobError: They are no such numbers.
    """
    found: set[int] = set()
    for each in text.split(","):
        match = _RANGE.fullmatch(each.strip())
        first, last = (int(part or match[1]) for part in match.groups()) if match else (0, 0)
        if not 1 <= first <= last <= _MOST:
            raise JobError(
                "--nodes",
                [
                    f"found '{text}', expected numbers from 1 to {_MOST}: a range such as 1..64, "
                    "or a list such as 1,2,4,8"
                ],
            )
        found |= set(range(first, last + 1))
    return sorted(found)


def of_length(job: Job, length: AskedOfRun) -> Job:
    """Return the job with as many steps as it takes to see, or generate, so much.

    Raises:
        JobError: Tokens are asked for, and it has none.
    """
    if length.tokens is not None and not job.data.has_sequence:
        raise JobError(
            "--tokens", ["the job has no data.sequence_length, so no tokens; give --samples"]
        )
    return job.lasting(tokens=length.tokens, samples=length.samples)


def size(
    job: Job, nodes: Sequence[int], asked: dict[str, Any], *, json_path: Path | None
) -> Sizing:
    """Find the smallest cluster, and print it.

    Args:
        job: Its training steps are those of the run.
        nodes: Numbers to try.
        asked: Arguments of `plan`; its limits are those of the run.
        json_path: Where JSON goes.

    Raises:
        Exit: No number of nodes meets everything; the answer is printed.
    """
    from wattree.report.sizing_text import show_sizing
    from wattree.search.sizing import smallest_cluster

    def begins(number: int) -> None:
        if not sys.stderr.isatty():  # where there are no bars
            tell(f"wattree: planning for {counted(number, 'node')}")

    with progress_bars() as progress:
        found = smallest_cluster(job, nodes, begins=begins, progress=progress, **asked)
    deliver(found.as_json, json_path, lambda console: show_sizing(found, job, console))
    if found.smallest is None:
        raise typer.Exit(NOTHING_FITS)
    return found
