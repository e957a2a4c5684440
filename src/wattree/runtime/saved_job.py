"""The executed job as a file of its own, independent of the working folder."""

from __future__ import annotations

from pathlib import Path

from wattree.job import Job
from wattree.job.written import job_yaml, mapping_of
from wattree.strategy import StrategyOptions

_STRATEGY = ("dp", "fsdp", "tp", "micro_batch", "ghosts", "variant", "regather", "sharding")

#: Keys that an option of the command may have set.
_COLOCATION = ("micro_batch", "processes_per_device", "batch_rule")


def job_text(path: Path, job: Job, preset: str | None) -> str:
    """Return a job file as text, its paths made absolute.

    Args:
        path: The file that was read.
        preset: What it was run with in place of its own strategy; None for its own.
    """
    mapping = mapping_of(path)
    mapping.setdefault("precision", job.precision)
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
    return job_yaml(mapping)
