"""Files of runs: JSON with the keys of `Run`, SI units in their names, no NaN and no Infinity.

The keys are those of the types in `run.py`, so that there is no second list of them to keep.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from wattree.errors import JobError, RunError, nearest
from wattree.files import read_json, write_atomic
from wattree.trace.run import Run
from wattree.trace.run_checks import problems_of

__all__ = ["SCHEMA", "read_run", "read_runs", "run_as_json", "write_run"]

#: What a file of a run says it is.
SCHEMA = "wattree-run/1"
#: A day of power at ten readings a second, for two devices. [B], values
_LIMIT_BYTES, _LIMIT_VALUES = 1 << 27, 4_000_000
#: Problems that one message lists.
_LISTED = 20

T = TypeVar("T")


def write_run(run: Run, path: str | Path) -> None:
    """Write a run to a file, whole or not at all.

    Raises:
        RunError: The run holds what no run can hold, so that no reader would take the file.
        OutputError: The file cannot be written.
    """
    if problems := problems_of(run):
        raise RunError(str(path), problems)
    write_atomic(path, json.dumps(run_as_json(run), indent=1, allow_nan=False) + "\n")


def run_as_json(run: Run) -> dict[str, Any]:
    """Return what the file of a run holds, in plain types."""
    return {"schema": SCHEMA, **_plain(run)}


def read_runs(paths: Iterable[str | Path]) -> tuple[Run, ...]:
    """Return the runs in files, in the order given.

    Raises:
        RunError: A file cannot be used. All files are read first, and all faults told at once.
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
        raise _refusal(f"{len(refused)} files of runs", lines)
    return tuple(runs)


def read_run(path: str | Path) -> Run:
    """Return the run in a file.

    Raises:
        RunError: The file cannot be read, is of another schema, lacks a key, has one that no run
            has, or a value that none can have. Every fault is listed.
    """
    source = str(path)
    try:
        found = read_json(path, limit_bytes=_LIMIT_BYTES, limit_values=_LIMIT_VALUES)
    except JobError as error:
        raise RunError(source, error.problems) from None
    schema = found.pop("schema", None)
    if schema != SCHEMA:
        what = "is missing" if schema is None else f"found {schema!r}"
        raise RunError(source, [f"schema: {what}, expected {SCHEMA!r}"])
    found.setdefault("name", Path(source).name.partition(".")[0] or source)
    problems: list[str] = []
    run = _made(Run, found, "", problems)
    if run is not None:
        problems = problems_of(run)
    if run is None or problems:
        raise _refusal(source, problems)
    return run


def _refusal(source: str, problems: list[str]) -> RunError:
    """Return an error that holds all problems and tells the first ones."""
    error = RunError(source, problems)
    if (rest := len(problems) - _LISTED) > 0:
        lines = [f"{source}: {len(problems)} problems:", *(f"  {p}" for p in problems[:_LISTED])]
        error.args = ("\n".join([*lines, f"  and {rest} more"]),)
    return error


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, StrEnum) else value


def _made(kind: type[T], found: object, where: str, problems: list[str]) -> T | None:
    """Return a `kind` with the values of a mapping, or None after listing what is wrong."""
    if not isinstance(found, dict):
        problems.append(f"{where}: found {_shown(found)}, expected an object")
        return None
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    before = len(problems)
    values = {}
    for key, item in found.items():
        place = f"{where}.{key}".lstrip(".")
        if key not in fields:
            guess = nearest(str(key), fields)
            hint = f"did you mean '{guess}'? " if guess else ""
            problems.append(f"{place}: unknown key; {hint}known: {', '.join(sorted(fields))}")
        else:
            values[str(key)] = _value(hints[key], item, place, problems)
    for name, field in fields.items():
        given = name in values
        if not given and field.default is field.default_factory is dataclasses.MISSING:
            problems.append(f"{where}.{name}".lstrip(".") + ": is missing")
    return kind(**values) if len(problems) == before else None


def _value(hint: Any, item: object, where: str, problems: list[str]) -> Any:
    """Return `item` as its type hint wants it; None after listing what is wrong."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        wanted = next(option for option in arguments if option is not types.NoneType)
        return None if item is None else _value(wanted, item, where, problems)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _made(hint, item, where, problems)
    if origin is None:
        return _scalar(hint, item, where, problems)
    if origin is tuple and isinstance(item, list):
        of = arguments[0]
        return tuple(_value(of, x, f"{where}[{i}]", problems) for i, x in enumerate(item))
    if origin is not tuple and isinstance(item, dict):
        return {key: _value(arguments[1], x, f"{where}.{key}", problems) for key, x in item.items()}
    wanted = "a list" if origin is tuple else "an object"
    problems.append(f"{where}: found {_shown(item)}, expected {wanted}")
    return None


def _scalar(hint: Any, item: object, where: str, problems: list[str]) -> Any:
    if hint is float and isinstance(item, int | float) and not isinstance(item, bool):
        return float(item)
    if issubclass(hint, StrEnum):
        if item in list(hint):
            return hint(item)
        known = ", ".join(hint)
        problems.append(f"{where}: found {_shown(item)}, expected one of {known}")
        return None
    if type(item) is hint:
        return item
    words = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
    problems.append(f"{where}: found {_shown(item)}, expected {words[hint]}")
    return None


def _shown(item: object) -> str:
    if isinstance(item, dict | list):
        return "an object" if isinstance(item, dict) else "a list"
    if isinstance(item, float) and not math.isfinite(item):
        return str(item)
    return json.dumps(item)[:60]
