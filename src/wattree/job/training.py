"""Settings of a real run: a job's `training`, and the `source` of its data."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from wattree.errors import ModelError, did_you_mean
from wattree.job.job import CheckpointOptions, SampleSource, TrainingOptions
from wattree.job.module import module_source, names_module
from wattree.job.problems import Problems, shown
from wattree.job.schema import DataSpec, TrainingSpec

#: Sources of samples by name; any other is a Python function.
SOURCES: Final = ("synthetic-regression", "synthetic-classification", "digits")
_PLACE: Final = "data.source"
#: Seconds of 1,000 devices in a day.
_DEVICE_SECONDS: Final = 1_000 * 86_400.0


def training_options(value: object, *, folder: Path, problems: Problems) -> TrainingOptions:
    """Return the section `training`; faults go to `problems`.

    Args:
        value: As read from the file.
    """
    spec = problems.read(TrainingSpec, value, "training")
    if spec is None:
        return TrainingOptions()
    saved = spec.checkpoint
    if saved is not None and not saved.dir.strip():
        problems.add("training.checkpoint.dir", "found an empty text, expected a folder")
    return TrainingOptions(
        steps=spec.steps,
        seed=spec.seed,
        learning_rate=spec.learning_rate,
        target_loss=spec.target_loss,
        failures_per_device_s=None if spec.failures is None else spec.failures / _DEVICE_SECONDS,
        restart_s=spec.restart,
        checkpoint_bytes_per_s=spec.checkpoint_rate,
        checkpoint=None
        if saved is None
        else CheckpointOptions(folder=folder / saved.dir, every=saved.every),
    )


def sample_source(spec: DataSpec, *, folder: Path, problems: Problems) -> SampleSource:
    """Return the samples of `data`; faults go to `problems`."""
    text = spec.source
    is_synthetic = text is None or text.startswith("synthetic-")
    if spec.samples is not None and not is_synthetic:
        problems.add(
            "data.samples", f"found together with the source {shown(text)}, which has its own"
        )
    if text is None or text in SOURCES:
        return SampleSource(name=text, samples=spec.samples)
    if names_module(text):
        try:
            return SampleSource(module=module_source(text, folder))
        except ModelError as error:
            problems.add(_PLACE, str(error))
            return SampleSource()
    hint = did_you_mean(text, SOURCES)
    problems.add(
        _PLACE,
        f"found {shown(text)}; {hint}expected one of {', '.join(SOURCES)}, or a Python function "
        "such as data.py:dataset",
    )
    return SampleSource()
