"""Predict generation from the prefill step and decode steps at a few cache lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Generic, TypeVar

from wattree.cost import Calibration
from wattree.job import Job
from wattree.lowering.model import model_of
from wattree.lowering.setting import Setting, setting_of
from wattree.lowering.workload import GenerationPhase
from wattree.strategy import Strategy, StrategyOptions

_Step = TypeVar("_Step")

#: Strategy of a generation job that states none.
NO_STRATEGY: Final = (
    "strategy: found 'auto', expected a strategy: 'plan' finds those of training and forward "
    "passes; give one, such as 'strategy: {tp: 8, micro_batch: 16}', and compare several with "
    "'wattree compare'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLength:
    """A length of the cache at which a step is predicted.

    Attributes:
        cache_length: Positions that each token attends to, its own included.
        count: Number of steps that it represents.
    """

    cache_length: float
    count: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted(Generic[_Step]):
    """The predicted steps of generation, and how often each occurs.

    Attributes:
        prefill: The pass over the prompts.
        decode: Length of the cache → parts of its step, each with its count.
    """

    prefill: _Step
    decode: tuple[tuple[DecodeLength, tuple[tuple[float, _Step], ...]], ...]


def decode_lengths(job: Job, windows: Sequence[int]) -> tuple[DecodeLength, ...]:
    """Return the cache lengths at which steps are predicted, by Simpson's rule between kinks.

    The first token comes with the prompts; of the others, the first attends to the prompt and two
    tokens, its own included. A step's cost is affine in the length of the cache, or several affine
    pieces where attention stops growing at a sliding window or changes from one roof to the other;
    the rule is exact for each such piece.

    Args:
        job: Generates tokens.
        windows: Of its model's attention, in tokens.
    """
    prompt, generated = job.data.sequence_length, job.data.generate_length
    first, last, steps = prompt + 1.0, prompt + generated - 1.0, generated - 1.0
    if steps <= 0:
        return ()
    if first == last:
        return (DecodeLength(cache_length=first, count=1.0),)
    kinks = sorted(float(window) for window in set(windows) if first < window < last)
    edges = [first, *kinks, last]
    counts: dict[float, float] = {}
    for low, high in pairwise(edges):
        share = steps * (high - low) / (last - first)
        for length, weight in ((low, 1 / 6), ((low + high) / 2, 4 / 6), (high, 1 / 6)):
            counts[length] = counts.get(length, 0.0) + weight * share
    return tuple(
        DecodeLength(cache_length=length, count=count) for length, count in sorted(counts.items())
    )


def generation_steps(
    job: Job,
    calibration: Calibration,
    step_of: Callable[[Setting], _Step],
    time_s: Callable[[_Step], float],
) -> Predicted[_Step]:
    """Return the steps that a job's generation is made of.

    Args:
        job: Generates tokens.
        calibration: Constants.
        step_of: Predicts the step of a setting.
        time_s: Of a step. [s]

    Raises:
        WattreeError: The job is impossible.
    """
    model = model_of(job)
    operators = (o for block in model.blocks.values() for o in block.operators)
    windows = [o.mask.window for o in operators if o.mask is not None and o.mask.window is not None]

    def setting(phase: GenerationPhase, *, twice: bool = False) -> Setting:
        of_job = _twice(job) if twice else job
        return setting_of(of_job, calibration, model=model, phase=phase)

    prefill = step_of(setting(GenerationPhase()))
    found = []
    for length in decode_lengths(job, windows):
        phase = GenerationPhase(cache_length=length.cache_length)
        once = step_of(setting(phase))
        parts: tuple[tuple[float, _Step], ...] = ((1.0, once),)
        if stages_of(job) > 1:
            twice = step_of(setting(phase, twice=True))
            parts = _in_steady_state(once, twice, time_s, micro_batches_of(job))
        found.append((length, parts))
    return Predicted(prefill=prefill, decode=tuple(found))


def stages_of(job: Job) -> int:
    """Return the pipeline stages of a job whose strategy is given."""
    strategy = job.strategy
    assert not isinstance(strategy, str)
    return strategy.stages if isinstance(strategy, Strategy) else strategy.pp


def micro_batches_of(job: Job) -> int:
    """Return the micro-batches of a step of a job whose strategy is given."""
    strategy = job.strategy
    if isinstance(strategy, Strategy):
        return strategy.schedule.micro_batches
    assert isinstance(strategy, StrategyOptions)
    return max(job.data.global_batch // (strategy.replicas * strategy.pipeline.micro_batch), 1)


def _twice(job: Job) -> Job:
    """Return a job with twice the micro-batches, all else equal."""
    data = replace(job.data, global_batch=2 * job.data.global_batch)
    strategy = job.strategy
    if isinstance(strategy, Strategy):
        schedule = strategy.schedule
        schedule = replace(schedule, micro_batches=2 * schedule.micro_batches)
        strategy = replace(strategy, schedule=schedule)
    return replace(job, data=data, strategy=strategy)


def _in_steady_state(
    once: _Step, twice: _Step, time_s: Callable[[_Step], float], micro_batches: int
) -> tuple[tuple[float, _Step], ...]:
    """Return a decode step of a pipeline that never drains, as parts of steps that do.

    A micro-batch may begin its next token as soon as it has left the last stage, so stages idle
    only where there are fewer micro-batches than stages. With `m t` the time that `m` more
    micro-batches add, and `L` that of one through all stages, the period is `max(L, m t)`. The
    parts add up to that time, and to the work of `m` micro-batches.
    """
    busy_s = time_s(twice) - time_s(once)  # m t
    fill_s = time_s(once) - busy_s  # L - t
    period_s = max(fill_s + busy_s / micro_batches, busy_s)
    filled = 0.0 if fill_s <= 0 else min(max((period_s - busy_s) / fill_s, 0.0), 1.0)
    return ((2.0 * filled - 1.0, once), (1.0 - filled, twice))
