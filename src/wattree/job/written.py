"""A job file with some keys replaced, equivalent from any folder."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from wattree.files import exists, read_yaml
from wattree.kinds import schema_line


def mapping_of(job: Path | Mapping[str, Any], *, folder: Path | None = None) -> dict[str, Any]:
    """Return the keys of a job file, with paths of other files made absolute.

    Args:
        job: The file, or the keys of one in the current folder.
        folder: Where the keys will be written; paths in the file's own folder stay as they are.

    Raises:
        JobError: It cannot be read.
    """
    found = read_yaml(job) if isinstance(job, Path) else dict(job)
    own = job.absolute().parent if isinstance(job, Path) else Path.cwd()
    return found if folder is not None and folder.absolute() == own else _absolute(found, own)


def job_yaml(mapping: Mapping[str, Any], *, head: str = "") -> str:
    """Return the text of a job file that names its schema; arguments as of `yaml_text`."""
    return f"{schema_line('job')}\n{yaml_text(mapping, head=head)}"


def yaml_text(mapping: Mapping[str, Any], *, head: str = "") -> str:
    """Return a mapping as YAML.

    Args:
        head: A comment before it, without its sign.
    """
    from ruamel.yaml import YAML

    text = StringIO()
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    # Keys stay in the order of the file.
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.dump(dict(mapping), text)
    return "".join([*(f"# {line}\n" for line in head.splitlines()), text.getvalue()])


def _absolute(value: Any, folder: Path) -> Any:
    """Return a value whose texts that name files of a folder name them from anywhere."""
    if isinstance(value, Mapping):
        return {key: _absolute(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_absolute(item, folder) for item in value]
    if not isinstance(value, str) or not ("/" in value or "." in value):
        return value
    file, colon, function = value.partition(".py:")
    named = folder / (f"{file}.py" if colon else value)
    return f"{named}{f':{function}' if colon else ''}" if exists(named) else value
