"""Recognizes the kind of a file, for messages about a wrong one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from wattree.errors import JobError
from wattree.files import LIMIT_BYTES, is_file, read_yaml

#: Of a file that is too large, the part in which its keys are looked for. [B]
_HEAD_BYTES: Final = 4096

#: Kind of file → keys that all of its files have, and what is done with them.
_KINDS: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    "a job": (frozenset({"model", "data", "cluster"}), "use `wattree plan`, `simulate` or `train`"),
    "a design study": (frozenset({"workloads", "axes"}), "use `wattree design`"),
    "a queue": (frozenset({"cluster", "jobs"}), "use `wattree schedule`"),
    "a report of a profile": (frozenset({"machine", "measurements"}), "give its calibration"),
    "a calibration": (frozenset({"constants"}), "give it as `--calibration`"),
    "a plan": (frozenset({"candidates", "feasible"}), "`wattree plan --out` writes its job"),
    "a plan of several sizes": (frozenset({"tried", "ruled_out"}), "give the job that it plans"),
    "a result": (frozenset({"step_time_s", "memory"}), "use `wattree compare`, or give its job"),
    "a comparison": (frozenset({"runs", "differing"}), "give one of the jobs that it compares"),
    "a schedule": (frozenset({"queue", "first_come"}), "give the queue or a job of it"),
    "a checked job": (frozenset({"facts", "assumed"}), "give the job itself"),
    "an explanation": (frozenset({"predicted_s", "faults"}), "give the job that it explains"),
    "a validation": (frozenset({"rows", "hold_outs"}), "give one of its jobs"),
    "results of a design study": (frozenset({"study", "objectives"}), "give the study or a job"),
    "a measured run": (frozenset({"wall_s", "energy_j"}), "use `wattree energy`"),
    "a device": (frozenset({"architecture", "matrix_peak"}), "name it as `device:` of a node"),
    "a node": (frozenset({"device", "devices"}), "name it as `cluster: {node: FILE}` of a job"),
    "a model's config.json": (frozenset({"model_type"}), "name it as `model:` of a job"),
}


def wrong_kind(mapping: object, expected: str) -> str | None:
    """Return the message about a file of another kind, with the command for it; else None.

    Args:
        mapping: As read.
        expected: The kind that was asked for, such as `a job`.
    """
    if not isinstance(mapping, Mapping):
        return None
    if expected in _KINDS and mapping.keys() >= _KINDS[expected][0]:
        return None
    for kind, (keys, advice) in _KINDS.items():
        if keys <= mapping.keys():
            return f"this is {kind}, expected {expected}: {advice}"
    return None


def check_kind(path: Path, expected: str) -> None:
    """Raise an error for a YAML file of another kind where files of `expected` are no YAML.

    Args:
        path: The file.

    Raises:
        JobError: It is of another kind.
    """
    found: dict[str, Any] = {}
    if path.suffix.lower() in {".yaml", ".yml"}:
        with suppress(JobError):  # what else is wrong is reported where it is read
            found = read_yaml(path)
    if why := wrong_kind(found, expected):
        raise JobError(str(path), [why])


def read_kind(path: Path, expected: str) -> dict[str, Any]:
    """Return the mapping in a YAML file, as `read_yaml` does.

    A file that is too large to be read is named as what its first keys show it to be.

    Args:
        path: The file.

    Raises:
        JobError: It cannot be read, or is of another kind.
    """
    if why := wrong_kind(dict.fromkeys(_first_keys(path)), expected):
        raise JobError(str(path), [why])
    return read_yaml(path)


def _first_keys(path: Path) -> list[str]:
    """Return the keys of a large JSON file that come before its first nested value."""
    head = ""
    with suppress(OSError):
        if is_file(path) and path.stat().st_size > LIMIT_BYTES:
            with path.open("rb") as file:
                head = file.read(_HEAD_BYTES).decode("utf-8", "replace").lstrip()
    flat = re.split(r"[\[{]", head.removeprefix("{"), maxsplit=1)[0] if head[:1] == "{" else ""
    return re.findall(r'"(\w+)"\s*:', flat)


def schema_line(kind: str) -> str:
    """Return the first line of a YAML file that names its JSON schema to editors.

    Args:
        kind: Kind of `wattree schema`, which writes the schema next to the file.
    """
    return f"# yaml-language-server: $schema={kind}.schema.json"
