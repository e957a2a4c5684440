"""Predict generation from the prefill step and decode steps at a few cache lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.cost import Calibration
from wattree.graph import ModelGraph
from wattree.job import Job, WorkloadKind
from wattree.lowering.model import model_of
from wattree.lowering.setting import Setting, stated_setting
from wattree.lowering.workload import DecodeLength, GenerationPhase
from wattree.predict.left_open import setting_of
from wattree.strategy import Strategy, StrategyOptions

if TYPE_CHECKING:
    Figures = float | Floats

_Step = TypeVar("_Step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted(Generic[_Step]):
    """The predicted steps of generation, and how often each occurs.

    Attributes:
        prefill: The pass over the prompts.
        decode: Length of the cache → parts of its step, each with its count.
    """

    prefill: _Step
    decode: tuple[tuple[DecodeLength, tuple[tuple[Figures, _Step], ...]], ...]


def workload_setting(
    job: Job, calibration: Calibration, *, model: ModelGraph | None = None
) -> Setting:
    """Return the setting of all that a job does: of its step, or of generation.

    Args:
        model: The job's model graph, where it has been built before.

    Raises:
        WattreeError: As `setting_of`.
    """
    if job.workload is not WorkloadKind.GENERATE:
        return setting_of(job, calibration, model=model)
    model = model_of(job) if model is None else model
    windows = [
        o.mask.window for o in model.operators if o.mask is not None and o.mask.window is not None
    ]
    prefill = stated_setting(job, calibration, model=model, phase=GenerationPhase())
    decode = []
    for length in decode_lengths(job, windows):
        phase = GenerationPhase(cache_length=length.cache_length)
        decode.append((length, stated_setting(job, calibration, model=model, phase=phase)))
    return replace(prefill, decode=tuple(decode))


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


def of_batches(strategy: Strategy | StrategyOptions, times: int) -> Strategy | StrategyOptions:
    """Return a strategy with `times` as many micro-batches; options leave these to the batch."""
    if isinstance(strategy, StrategyOptions):
        return strategy
    schedule = strategy.schedule
    many = replace(schedule, micro_batches=times * schedule.micro_batches)
    return replace(strategy, schedule=many)


def generation_steps(
    setting: Setting,
    step_of: Callable[[Setting, int], _Step],
    time_s: Callable[[_Step], Figures],
    *,
    stages: int | Integers,
    micro_batches: int | Integers,
) -> Predicted[_Step]:
    """Return the steps that generation is made of, of one strategy or of arrays of them.

    Args:
        step_of: Predicts the step of a setting with so many times the micro-batches of the job.
        time_s: Of a step. [s]
        micro_batches: Of a step and replica.
    """
    assert setting.decode is not None
    prefill = step_of(replace(setting, decode=None), 1)
    found = []
    for length, decode in setting.decode:
        once = step_of(decode, 1)
        parts: tuple[tuple[Figures, _Step], ...] = ((1.0, once),)
        if np.any(np.asarray(stages) > 1):
            twice = step_of(decode.of_batches(2), 2)
            shares = _steady_state(time_s(once), time_s(twice), stages, micro_batches)
            parts = tuple(zip(shares, (once, twice), strict=True))
        found.append((length, parts))
    return Predicted(prefill=prefill, decode=tuple(found))


def _steady_state(
    once_s: Figures,
    twice_s: Figures,
    stages: int | Integers,
    micro_batches: int | Integers,
) -> tuple[Figures, Figures]:
    """Return a decode step of a pipeline that never drains, as shares of steps that do.

    A micro-batch may begin its next token as soon as it has left the last stage, so stages idle
    only where there are fewer micro-batches than stages. With `m t` the time that `m` more
    micro-batches add, and `L` that of one through all stages, the period is `max(L, m t)`. The
    shares add up to that time, and to the work of `m` micro-batches.
    """
    busy_s = twice_s - once_s  # m t
    fill_s = once_s - busy_s  # L - t
    period_s = np.maximum(fill_s + busy_s / micro_batches, busy_s)
    is_filled = (fill_s > 0) & (np.asarray(stages) > 1)
    share = np.clip((period_s - busy_s) / np.where(is_filled, fill_s, 1.0), 0.0, 1.0)
    filled = np.where(np.asarray(stages) > 1, np.where(is_filled, share, 0.0), 1.0)
    return 2.0 * filled - 1.0, 1.0 - filled
