"""Configurations of programs that no reader here reads, recognized before they are misread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from wattree.errors import JobError
from wattree.files import is_file, read_yaml

_PROGRAMS: Final[Mapping[str, list[str]]] = read_yaml(Path(__file__).with_name("foreign.yaml"))


def refuse_foreign(path: Path, values: Mapping[str, Any]) -> None:
    """Refuse a file of a program without a reader here; others share some of its keys.

    Args:
        path: The file.
        values: Settings in it, where it is YAML or JSON.

    Raises:
        JobError: The file is of such a program, or a program in Python.
    """
    if path.suffix == ".py" and is_file(path):
        raise JobError(
            str(path),
            [
                "found a program in Python, expected a file of settings: recipes in Python are "
                "not run; write their values as a job, or as settings of an earlier release"
            ],
        )
    keys = {str(key).replace("-", "_") for key in values}
    for program, own in _PROGRAMS.items():
        if keys.issuperset(own):
            raise JobError(
                str(path),
                [
                    f"found a configuration of {program}, which no reader here reads; write its "
                    "values as a job, or import what it starts (DeepSpeed's JSON, Accelerate's "
                    "YAML, the command)"
                ],
            )
