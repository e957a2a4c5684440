"""A `wattree train` job with several processes per device: the share of each process."""

from __future__ import annotations

from dataclasses import replace

from wattree.errors import StrategyError
from wattree.job import Job
from wattree.runtime.colocation.batch import batch_share
from wattree.runtime.recipe import Recipe, ReplicaKind
from wattree.strategy import StrategyOptions


def colocated(job: Job, recipe: Recipe, processes: int, rule: str) -> tuple[Job, Recipe]:
    """Return a job and its recipe with `processes` replicas per device instead of one.

    Under fixed-global every step has the samples that it has with one process, and replicas take
    them in the same order; under fixed-per-process it has `q` times as many, and the learning rate
    is `q` times the job's.

    Args:
        job: As it is with one process on each device.
        processes: On each device, `q`.
        rule: One of `BATCH_RULES`.

    Raises:
        StrategyError: Replicas are several devices, or their batch does not divide by processes.
        JobError: The batch of a device has fewer samples than processes.
    """
    if processes == 1:
        return job, recipe
    if recipe.kind is not ReplicaKind.DDP:
        raise StrategyError(
            {
                "strategy.processes_per_device": f"found {processes} with tp {recipe.options.tp}, "
                "expected tp 1: processes that share a device are replicas (ddp)"
            },
            source=job.source,
        )
    of_device = job.data.global_batch // recipe.options.dp
    share = batch_share(of_device, processes, 0, rule, source=f"{job.source}: data.global_batch")
    if not share.is_even:
        step = recipe.options.dp * processes
        raise StrategyError(
            {
                "data.global_batch": f"{job.data.global_batch} samples cannot be split over "
                f"{recipe.options.dp} devices of {processes} processes; use a multiple of {step}, "
                "another number of processes, or --batch-rule fixed-per-process"
            },
            source=job.source,
        )
    count = _micro_batches(share.samples, recipe)
    options = recipe.options.changed(
        dp=recipe.options.dp * processes, micro_batch=share.samples // count
    )
    return (
        replace(job, data=replace(job.data, global_batch=share.of_device * recipe.options.dp)),
        replace(
            recipe,
            options=options,
            schedule=replace(recipe.schedule, micro_batches=count),
            processes_per_device=processes,
            learning_rate_scale=share.learning_rate_scale,
        ),
    )


def planned(job: Job, recipe: Recipe, rule: str) -> Job:
    """Return a job as its prediction needs it: with processes per device in its strategy.

    Args:
        job: As it is with one process on each device.
        recipe: As `colocated` has it.
        rule: One of `BATCH_RULES`.

    Raises:
        StrategyError: The strategy does not go with several processes on a device.
    """
    options = job.strategy
    if recipe.processes_per_device == 1 or not isinstance(options, StrategyOptions):
        return job
    try:
        options = options.changed(
            processes_per_device=recipe.processes_per_device,
            batch_rule=rule,
            micro_batch=recipe.options.pipeline.micro_batch,
        )
    except StrategyError as error:
        raise StrategyError(error.misfits, source=job.source) from error
    return replace(job, strategy=options)


def _micro_batches(samples: int, recipe: Recipe) -> int:
    """Return the number with the job's micro-batch, else the next with none larger.

    A micro-batch is what a process computes at a time: predictions have the same.
    """
    if samples % recipe.options.pipeline.micro_batch == 0:
        return samples // recipe.options.pipeline.micro_batch
    for count in range(recipe.micro_batches, samples + 1):
        if samples % count == 0 and samples // count <= recipe.options.pipeline.micro_batch:
            return count
    return samples
