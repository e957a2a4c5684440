"""The job that was run, as a file of its own: it says the same from any folder."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from wattree.files import read_yaml
from wattree.job import Job
from wattree.strategy import StrategyOptions

_STRATEGY = ("dp", "tp", "micro_batch", "ghosts", "variant", "regather", "sharding")

#: Keys that an option of the command may have set.
_COLOCATION = ("micro_batch", "processes_per_device", "batch_rule")


def job_text(path: Path, job: Job, preset: str | None) -> str:
    """Return a job file as text, its paths made absolute.

    Args:
        path: The file that was read.
        job: What was run of it.
        preset: What it was run with in place of its own strategy; None for its own.
    """
    from ruamel.yaml import YAML

    mapping = _absolute(read_yaml(path), path.absolute().parent)
    saved = job.training.checkpoint
    if saved is not None:
        mapping["training"]["checkpoint"]["dir"] = str(saved.folder.absolute())
    options = job.strategy
    if preset is not None and isinstance(options, StrategyOptions):
        mapping["strategy"] = {"preset": preset} | {
            key: value for key, value in options.chosen().items() if key in _STRATEGY
        }
        if options.phantoms.layer_ghosts:
            mapping["strategy"]["layer_ghosts"] = dict(options.phantoms.layer_ghosts)
    if isinstance(options, StrategyOptions) and options.colocation.is_several:
        mapping["strategy"] |= {key: options.value(key) for key in _COLOCATION}
    text = StringIO()
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.dump(mapping, text)
    return text.getvalue()


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
    try:
        return f"{named}{f':{function}' if colon else ''}" if named.exists() else value
    except OSError:  # longer than a name may be
        return value
