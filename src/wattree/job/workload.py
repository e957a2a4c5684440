"""Requirements of a workload on the rest of a job: lengths, and a strategy without gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wattree.errors import JobError
from wattree.job.job import INFERENCE, Job, WorkloadKind
from wattree.job.problems import Problems
from wattree.job.schema import DataSpec
from wattree.strategy import Strategy, StrategyOptions
from wattree.strategy.schedules import PIPELINE_SCHEDULES

_NOTHING: Final = "there are no gradients and no optimizer state without training"
#: Keys of job files that only training reads.
_OF_TRAINING: Final = ("optimizer", "training")
#: Options that only move or store what backward passes make.
_OF_BACKWARD: Final = (
    "recompute",
    "overlap_gradients",
    "overlap_optimizer",
    "reduce_every_micro_batch",
)
#: Options that a step of one position for each sequence has no use for.
_OF_POSITIONS: Final = {
    "cp": "a generated token is one position, which cannot be split; use tp or dp",
    "sequence_parallel": "a generated token is one position, which cannot be split; leave it out",
    "virtual_stages": "generation is modeled with one chunk of layers on each stage; leave it out",
    "processes_per_device": "generation is modeled with one process on each device; leave it out",
    "single_process": "generation is modeled with a process for each device; leave it out",
}


def workload_of(mapping: Mapping[Any, Any], *, problems: Problems) -> WorkloadKind:
    """Return the workload that a job file names; a fault goes to `problems`."""
    value = mapping.get("workload", WorkloadKind.TRAIN.value)
    known = [each.value for each in WorkloadKind]
    if value not in known:
        problems.add("workload", f"found {value!r}, expected one of {', '.join(known)}")
        return WorkloadKind.TRAIN
    return WorkloadKind(value)


def refuse_workload(job: Job, command: str, *, forward: bool = False) -> None:
    """Raise an error for a job that does not train, in commands that support only training.

    Args:
        forward: It supports forward passes as well.

    Raises:
        JobError: It runs forward passes or generates tokens.
    """
    if job.workload is not WorkloadKind.TRAIN and not (
        forward and job.workload is WorkloadKind.FORWARD
    ):
        only = "training and forward passes" if forward else "training"
        raise JobError(
            job.source,
            [
                f"workload: found {job.workload}, but 'wattree {command}' is for {only}; use "
                "'wattree simulate', 'check' or 'compare', or workload: train"
            ],
        )


def check_lengths(spec: DataSpec, workload: WorkloadKind, *, problems: Problems) -> None:
    """Note excess or missing lengths in `data` for a workload."""
    lengths = {"prompt_length": spec.prompt_length, "generate_length": spec.generate_length}
    if workload is WorkloadKind.GENERATE:
        for key, value in lengths.items():
            if value is None:
                expected = DataSpec.model_fields[key].description
                problems.add(f"data.{key}", f"is missing, expected {expected}")
        for key in ("sequence_length", "document_length", "loader", "source", "samples"):
            if getattr(spec, key) is not None:
                problems.add(
                    f"data.{key}",
                    "found with workload: generate, which reads prompts; use prompt_length and "
                    "generate_length alone",
                )
        return
    for key, value in lengths.items():
        if value is not None:
            problems.add(
                f"data.{key}",
                f"found with workload: {workload}; use sequence_length, or workload: generate",
            )


def check_strategy(
    strategy: Strategy | StrategyOptions | str | None,
    workload: WorkloadKind,
    mapping: Mapping[Any, Any],
    *,
    software: str,
    problems: Problems,
) -> None:
    """Note all choices that are invalid without training, and a `software` that cannot train."""
    if workload is WorkloadKind.TRAIN:
        if software == INFERENCE:
            problems.warn("software", f"'{INFERENCE}' has no defaults of training; name another")
        return
    for key in _OF_TRAINING:
        found = mapping.get(key)
        steps = isinstance(found, Mapping) and "steps" in found  # of which a run is predicted
        rest = " but for steps" if steps and workload is WorkloadKind.GENERATE else ""
        if key in mapping and not (rest and len(found or ()) == 1):
            is_run = workload is WorkloadKind.FORWARD and key == "training"
            problems.warn(
                key,
                "counts steps for 'wattree train', which computes forward passes alone"
                if is_run
                else f"has no effect{rest} with workload: {workload}: {_NOTHING}",
            )
    if workload is WorkloadKind.GENERATE and mapping.get("neighbours") is not None:
        problems.add("neighbours", "found with workload: generate, which is predicted alone")
    if isinstance(strategy, StrategyOptions):
        _check_options(strategy, workload, problems=problems)
        if workload is WorkloadKind.GENERATE:
            for key in sorted(_OF_POSITIONS.keys() & strategy.chosen().keys()):
                problems.add(
                    f"strategy.{key}", f"found with workload: generate: {_OF_POSITIONS[key]}"
                )


def _check_options(options: StrategyOptions, workload: WorkloadKind, *, problems: Problems) -> None:
    """Note options that move or store what only backward passes make."""
    if options.memory.sharding in {"zero1", "zero2"}:
        problems.add(
            "strategy.sharding",
            f"found '{options.memory.sharding}' with workload: {workload}: {_NOTHING}; use zero3 "
            "to shard parameters, or none",
        )
    chosen = options.chosen()
    for key in _OF_BACKWARD:
        if key in chosen:
            problems.add(
                f"strategy.{key}",
                f"found with workload: {workload}, which has no backward pass; leave it out",
            )
    for name in ("optimizer", "activations"):
        if getattr(options.traffic.offload, name) is not None:
            problems.add(f"strategy.offload.{name}", f"found with workload: {workload}: {_NOTHING}")
    schedule = PIPELINE_SCHEDULES.get(options.pipeline.schedule)
    if schedule is not None and schedule.splits_backward:
        problems.add(
            "strategy.schedule",
            f"found '{options.pipeline.schedule}', which splits backward passes, with workload: "
            f"{workload}; use '1f1b' or 'gpipe'",
        )
