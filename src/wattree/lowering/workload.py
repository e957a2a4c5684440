"""Changes a job's model by its workload: no trained parameters, or the phases of generation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from wattree.capture import (
    decode_graph,
    evaluated,
    generation_misfit,
    prefill_graph,
    with_late_sums,
)
from wattree.cost import AUTO_SOFTWARE, Software
from wattree.errors import JobError, StrategyError
from wattree.graph import ModelGraph
from wattree.job import INFERENCE, Job, WorkloadKind
from wattree.lowering.idle import has_experts
from wattree.lowering.legality import check_fits
from wattree.strategy import StrategyOptions
from wattree.strategy.presets import strategy_of

#: Why a job that generates has no step that a command for training could take.
NO_STEP: Final = (
    "workload: found generate, which has no single step; use 'wattree simulate', 'plan', 'check' "
    "or 'compare' (wattree.simulate, plan and estimate in Python), or workload: train or forward"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPhase:
    """A part of generation that has one step of its own.

    Attributes:
        cache_length: Positions that the new token of each sequence attends to, its own included;
            None for the pass over the prompts.
    """

    cache_length: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLength:
    """A length of the cache at which a step is predicted.

    Attributes:
        cache_length: Positions that each token attends to, its own included.
        count: Number of steps that it represents.
    """

    cache_length: float
    count: float


def workload_model(
    job: Job, model: ModelGraph, software: Software, phase: GenerationPhase | None
) -> tuple[Job, ModelGraph]:
    """Return a job that does not train, and the graph that its step runs.

    It has neither gradients nor optimizer state, and keeps nothing for backward.

    Raises:
        JobError: Its model cannot generate, or not as many tokens.
    """
    if job.workload is WorkloadKind.FORWARD:
        return _with_running_statistics(job), evaluated(model)
    assert phase is not None
    _check_generation(job, model)
    data = job.data
    positions = data.sequence_length + data.generate_length
    if phase.cache_length is None:
        graph = prefill_graph(model, positions=positions)
    else:
        graph = decode_graph(model, cache_length=phase.cache_length, positions=positions)
        job = replace(job, data=replace(data, sequence_length=1))
    job = with_split_experts(
        job, model, why="as a generated token is one position; use ep to spread experts"
    )
    return job, _fused(graph) if software.inference_kernels else graph


def _with_running_statistics(job: Job) -> Job:
    """Return a job whose batch norms exchange nothing, as they use running statistics."""
    options = job.strategy
    if not isinstance(options, StrategyOptions) or not options.parallelism.sync_batch_norm:
        return job
    return _decided(job, options, "sync_batch_norm", "as forward passes use running statistics")


def with_split_experts(job: Job, model: ModelGraph, *, why: str) -> Job:
    """Return a job whose tensor ranks split every expert, like inference engines.

    A step of one position for each sequence has no positions to hand from rank to rank.
    """
    options = job.strategy
    if not isinstance(options, StrategyOptions) or options.tp == 1 or not has_experts(model):
        return job
    if not options.parallelism.expert_over_tensor:
        return job
    return _decided(job, options, "expert_over_tensor", why)


def _decided(job: Job, options: StrategyOptions, key: str, why: str) -> Job:
    """Return a job whose strategy has `key` off, and says why under what was assumed."""
    assumed = (*job.assumed, f"strategy.{key}: false, {why}")
    return replace(job, strategy=options.changed(**{key: False}), assumed=assumed)


def with_inference_software(job: Job) -> Job:
    """Return a job that leaves its software open with that of inference, if it generates.

    Evaluation runs in the software that trains.
    """
    job = replace(job, left_open=())
    if job.workload is WorkloadKind.FORWARD or job.software != AUTO_SOFTWARE:
        return job
    words = f"software: {INFERENCE}, because the job generates tokens and names no software"
    return replace(job, software=INFERENCE, assumed=(*job.assumed, words))


def _check_generation(job: Job, model: ModelGraph) -> None:
    problems = []
    if (misfit := generation_misfit(model)) is not None:
        problems.append(f"workload: found generate, but {model.name} {misfit}")
    prompt, generated, most = (
        job.data.sequence_length,
        job.data.generate_length,
        model.max_sequence_length,
    )
    if most is not None and prompt + generated > most:
        room = f"use at most {most - prompt:,}, or a " if most > prompt else "use a "
        problems.append(
            f"data.generate_length: found {generated:,} tokens after a prompt of {prompt:,}, but "
            f"{model.name} has {most:,} positions; {room}shorter prompt"
        )
    if problems:
        raise JobError(job.source, [*problems, *strategy_problems(job, model)])


def strategy_problems(job: Job, model: ModelGraph) -> list[str]:
    """Return why a job cannot have its strategy, before its step is made."""
    options = job.strategy
    if isinstance(options, str):
        return []
    try:
        batch = job.data.global_batch
        if isinstance(options, StrategyOptions):
            options = strategy_of(options, model=model, global_batch=batch)
        check_fits(
            model,
            options,
            job.cluster,
            global_batch=batch,
            sequence=job.data.sequence_length,
            devices=None if job.devices is None else len(job.devices),
        )
    except StrategyError as error:
        return error.problems
    return []


def _fused(graph: ModelGraph) -> ModelGraph:
    """Return a graph whose operators are one kernel each, with sums as in inference engines."""
    blocks = {name: with_late_sums(block) for name, block in graph.blocks.items()}
    whole = replace(graph, blocks=blocks)
    return whole.mapped(lambda operator: replace(operator, kernels=min(operator.kernels, 1)))
