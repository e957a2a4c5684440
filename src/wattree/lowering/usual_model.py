"""What a job that names its software leaves to it: of a `transformer:` block, and of a strategy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from wattree.capture import known_by_sizes, lacks_sequence
from wattree.cost.families import SOFTWARE
from wattree.cost.mixed_precision import at_precision
from wattree.graph import ModelGraph
from wattree.job import Job, WorkloadKind
from wattree.job.usual import (
    MICRO_BATCH,
    USUAL_STRATEGIES,
    in_words,
    usual_model,
    usual_traits,
    with_samples_at_once,
    with_usual,
)
from wattree.lowering.idle import has_experts, is_latent
from wattree.lowering.workload import strategy_problems
from wattree.strategy import StrategyOptions


def usual_block(job: Job) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the keys of a job's `transformer:` block, and the assumptions, in words.

    The catalog's model of the same sizes says what the block leaves out, and after it the
    software's own arguments. Jobs that name no software mean what they write.
    """
    block = dict(job.model.transformer or {})
    words: list[str] = []
    if not block or job.software not in USUAL_STRATEGIES:
        return block, ()
    if (known := known_by_sizes(block)) is not None and known[1]:
        name, facts = known
        words.append(f"model.transformer {', '.join(facts)}: as {name}, which has these sizes")
        block = {**facts, **block}
    sequence = job.data.sequence_length
    if changes := usual_model(block, job.software, sequence_length=sequence):
        words += in_words(changes, f"arguments of {job.software} where none are given")
    return {**changes, **block}, tuple(words)


def assuming(job: Job, words: Iterable[str]) -> Job:
    """Return the job with more that was assumed, in words, each once."""
    said = (word for word in words if word not in job.assumed)
    return replace(job, assumed=(*job.assumed, *said))


def splits_latent(strategy: object, model: ModelGraph) -> bool:
    """Return whether tensor ranks split layers of latent attention, or may.

    They may where the strategy is still to be found; one that says what hides its traffic counts
    before its software.
    """
    if isinstance(strategy, StrategyOptions):
        if strategy.tp == 1 or strategy.traffic.overlap_tensor is not None:
            return False
    elif not isinstance(strategy, str):
        return False
    return is_latent(model)


def with_batch(job: Job, model: ModelGraph) -> Job:
    """Return the job with the micro-batch of models without sequences, where it left that open."""
    if MICRO_BATCH not in job.left_open:
        return job
    strategy = job.strategy
    if lacks_sequence(model) and isinstance(strategy, StrategyOptions):
        strategy = with_samples_at_once(strategy, job.data.global_batch, job.workload)
    left = tuple(key for key in job.left_open if key != MICRO_BATCH)
    return replace(job, strategy=strategy, left_open=left)


def with_usual_settings(job: Job, model: ModelGraph) -> Job:
    """Return the job with the usual settings of its software where it states none."""
    job = assuming(job, usual_block(job)[1])
    if not job.left_open:
        return job
    strategy = job.strategy
    words: tuple[str, ...] = ()
    if isinstance(strategy, StrategyOptions):
        strategy, words = with_usual(
            strategy,
            job.software,
            job.left_open,
            problems=lambda tried: strategy_problems(replace(job, strategy=tried), model),
        )
    traits = usual_traits(
        job,
        job.software,
        has_experts=has_experts(model),
        splits_latent=splits_latent(strategy, model),
        is_latent=is_latent(model),
        drops_scores=model.drops_scores and job.workload is WorkloadKind.TRAIN,
    )
    usual = USUAL_STRATEGIES[job.software]
    plain = SOFTWARE[job.software]
    of_precision = at_precision(plain, job.precision)  # in fp32, it decides what recipes differ in
    words += tuple(
        note
        for trait, note in usual.notes.items()
        if trait not in job.traits and getattr(of_precision, trait) == getattr(plain, trait)
    )
    for trait, (value, why) in traits.items():
        words += in_words({trait: value}, why)
    return replace(
        job,
        strategy=strategy,
        traits={**{trait: value for trait, (value, _) in traits.items()}, **job.traits},
        assumed=(*job.assumed, *words),
    )
