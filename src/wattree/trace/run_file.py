"""Files of runs: JSON with the keys of `Run`, SI units in their names, no NaN and no Infinity.

The keys are those of the types in `run.py`, so that there is no second list of them to keep.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from wattree.errors import JobError, RunError
from wattree.files import read_json, refusal, write_atomic
from wattree.kinds import check_kind
from wattree.trace.plain import as_plain, from_plain, plain_schema
from wattree.trace.run import Run
from wattree.trace.run_checks import problems_of

#: What a file of a run says it is.
SCHEMA = "wattree-run/1"
#: A day of power at ten readings a second, for two devices. [B], values
_LIMIT_BYTES, _LIMIT_VALUES = 1 << 27, 4_000_000
#: Problems that one message lists.
_LISTED = 20


def write_run(run: Run, path: str | Path) -> None:
    """Write a run to a file atomically.

    Raises:
        RunError: The run holds what no run can hold, so that no reader would take the file.
        OutputError: The file cannot be written.
    """
    if problems := problems_of(run):
        raise RunError(str(path), problems)
    write_atomic(path, json.dumps(run_as_json(run), indent=1, allow_nan=False) + "\n")


def run_as_json(run: Run) -> dict[str, Any]:
    """Return what the file of a run holds, in plain types."""
    return {"schema": SCHEMA, **as_plain(run)}


def run_schema() -> dict[str, Any]:
    """Return the JSON schema of a file of a run (draft 2020-12)."""
    schema = plain_schema(Run)
    schema["properties"] = {"schema": {"const": SCHEMA}, **schema["properties"]}
    schema["required"] = ["schema", *(key for key in schema["required"] if key != "name")]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def read_runs(paths: Iterable[str | Path]) -> tuple[Run, ...]:
    """Return the runs in files, in the order given.

    Raises:
        RunError: A file cannot be used. All files are read first, and all errors reported at once.
    """
    runs: list[Run] = []
    refused: list[RunError] = []
    for path in paths:
        try:
            runs.append(read_run(path))
        except RunError as error:
            refused.append(error)
    if len(refused) == 1:
        raise refused[0]
    if refused:
        lines = [f"{error.source}: {line}" for error in refused for line in error.problems]
        raise refusal(f"{len(refused)} files of runs", lines, most=_LISTED, kind=RunError)
    return tuple(runs)


def read_run(path: str | Path) -> Run:
    """Return the run in a file.

    Raises:
        RunError: The file cannot be read, is of another schema, lacks a key, has one that no run
            has, or a value that none can have. Every fault is listed.
    """
    source = str(path)
    try:
        check_kind(Path(path), "a measured run")
        found = read_json(path, limit_bytes=_LIMIT_BYTES, limit_values=_LIMIT_VALUES)
    except JobError as error:
        raise RunError(source, error.problems) from None
    schema = found.pop("schema", None)
    if schema != SCHEMA:
        what = "is missing" if schema is None else f"found {schema!r}"
        raise RunError(source, [f"schema: {what}, expected {SCHEMA!r}"])
    if "utilisation" in found:  # the old spelling, read for one version
        found.setdefault("utilization", found.pop("utilisation"))
    found.setdefault("name", Path(source).name.partition(".")[0] or source)
    problems: list[str] = []
    run = from_plain(Run, found, problems)
    if run is not None:
        problems = problems_of(run)
    if run is None or problems:
        raise refusal(source, problems, most=_LISTED, kind=RunError)
    return run
