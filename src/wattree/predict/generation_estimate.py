"""Estimates in closed form of all that a job does: of its step, or of generation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import Estimates, Shared, estimate
from wattree.lowering.setting import Setting
from wattree.predict.generation import Predicted, generation_steps
from wattree.strategy import StrategyOptions


def workload_estimates(
    setting: Setting, options: StrategyOptions, degrees: Degrees, *, shared: Shared
) -> Estimates:
    """Return estimates of all that a job does; arguments as of `closed_form.estimate`."""
    if setting.decode is None:
        return estimate(setting, options, degrees, shared=shared)
    return of_all_steps(estimated_steps(setting, options, degrees, shared=shared))


def estimated_steps(
    setting: Setting, options: StrategyOptions, degrees: Degrees, *, shared: Shared
) -> Predicted[Estimates]:
    """Return estimates of the steps of generation, whose parts have a count for each strategy."""
    assert setting.decode is not None
    lengths = {id(step.model): length.cache_length for length, step in setting.decode}
    many = {1: degrees, 2: replace(degrees, micro_batches=2 * degrees.micro_batches)}

    def step_of(step: Setting, times: int) -> Estimates:
        own = shared.steps.setdefault(lengths.get(id(step.model)), Shared())
        return estimate(step, options, many[times], shared=own)

    return generation_steps(
        setting,
        step_of,
        lambda each: each.step_time_s,
        stages=degrees.axes["pp"],
        micro_batches=degrees.micro_batches,
    )


def of_all_steps(found: Predicted[Estimates]) -> Estimates:
    """Return the sum of the steps, with the memory of the fullest and the highest power."""
    counted = [
        (length.count * times, step) for length, parts in found.decode for times, step in parts
    ]
    own = [found.prefill, *(parts[0][1] for _, parts in found.decode)]
    fullest = np.argmax([step.process_bytes for step in own], axis=0)

    def at_fullest(name: str) -> NDArray[Any]:
        every = np.array([getattr(step, name) for step in own])
        found: NDArray[Any] = np.take_along_axis(every, fullest[np.newaxis], axis=0)[0]
        return found

    return Estimates(
        step_time_s=found.prefill.step_time_s + sum(n * step.step_time_s for n, step in counted),
        tensor_bytes=at_fullest("tensor_bytes"),
        process_bytes=at_fullest("process_bytes"),
        pool=at_fullest("pool"),
        energy_j=found.prefill.energy_j + sum(n * step.energy_j for n, step in counted),
        peak_power_w=np.max([step.peak_power_w for step in own], axis=0),
        spilled=at_fullest("spilled"),
        tier_fits=np.all([step.tier_fits for step in own], axis=0),
    )
