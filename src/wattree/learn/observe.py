"""Observations of constants from a measured step or from the classes of a traced one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from wattree.accounts import shares as names
from wattree.accounts.interval import RESIDUAL, constants_of, facts_of, training_parts
from wattree.accounts.known import measured_of
from wattree.cost.observations import Observation
from wattree.cost.precisions import precision_class
from wattree.kineto.op_classes import (
    ATTENTION,
    COMMUNICATION,
    ELEMENTWISE,
    HOST,
    OPTIMIZER,
    PRODUCTS,
)
from wattree.learn.own_steps import OwnStep
from wattree.lowering.setting import Setting
from wattree.trace import IntervalPart, Result

#: What is observed where no trace tells more.
STEP = "step"
#: Class of a trace → classes of constants that set its time. The others no constant sets.
_SET_BY: Mapping[str, tuple[str, ...]] = {
    PRODUCTS: (names.PRODUCTS, names.CONVOLUTION),
    ATTENTION: (names.ATTENTION,),
    ELEMENTWISE: (names.MEMORY,),
    OPTIMIZER: (names.MEMORY,),
    COMMUNICATION: (names.LINKS, names.NETWORK, names.EXPERTS),
    HOST: (names.HOST, names.OVERHEAD),
}
#: Share of the step below which a class says nothing of its constants.
_LEAST = 0.02
#: Share of the step, measured and predicted, that classes must cover to stand for it.
_COVERED = 0.6
#: Least spread of a class by itself: rows of whole steps determine the sum of classes, not each.
_CLASS_SPREAD = 0.1


def step_observation(setting: Setting, result: Result, measured_s: float) -> Observation:
    """Return what a measured step implies for the constants of its prediction."""
    device = setting.job.cluster.pools[0].node.device
    facts, constants = facts_of(setting, device, result.ranks), constants_of(setting, device)
    residuals = setting.calibration.residuals
    measured, spreads = measured_of(residuals), residuals.spreads
    parts = {name: part for name, part in result.interval_parts.items() if name in constants}
    shares = {name: part.share for name, part in parts.items()}
    known = facts.known(measured, shares, constants)
    told = training_parts(setting, parts, constants, device.name, measured)
    return Observation(
        what=STEP,
        job=Path(setting.job.source).name,
        device=device.name,
        software=facts.software,
        kind=facts.kind,
        precision=precision_class(setting.precision),
        measured_s=measured_s,
        predicted_s=result.step_time_s,
        parts={**told, RESIDUAL: IntervalPart(share=1.0, spread=known.alike(spreads))},
        noise=known.observation_noise(spreads),
    )


def class_observations(
    step: Observation,
    result: Result,
    measured_s: Mapping[str, float],
    predicted_s: Mapping[str, float],
) -> tuple[Observation, ...]:
    """Return what the classes of a traced step imply; the step itself if they cover little of it.

    Each has the uncertainty of a step.

    Args:
        step: Observation of the whole step.
        result: Its prediction.
        measured_s, predicted_s: Class → its time. [s]
    """
    least_s = _LEAST * result.step_time_s
    told = [
        name
        for name, behind in _SET_BY.items()
        if min(measured_s[name], predicted_s[name]) > least_s
        and any(each in step.parts for each in behind)
    ]
    covered = min(
        math.fsum(times_s[name] for name in told) / math.fsum(times_s.values())
        for times_s in (measured_s, predicted_s)
    )
    if covered < _COVERED:
        return (step,)
    found = []
    for name in told:
        behind = {each: step.parts[each] for each in _SET_BY[name] if each in step.parts}
        whole = math.fsum(part.share for part in behind.values())
        own = {
            each: IntervalPart(
                share=part.share / whole if whole > 0 else 1.0 / len(behind),
                spread=max(part.spread, _CLASS_SPREAD),
            )
            for each, part in behind.items()
        }
        found.append(
            replace(
                step,
                what=name,
                measured_s=measured_s[name],
                predicted_s=predicted_s[name],
                parts={**own, RESIDUAL: step.parts[RESIDUAL]},
            )
        )
    return tuple(found)


def mean(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def mean_classes(steps: Sequence[OwnStep]) -> Mapping[str, float] | None:
    """Return class → its mean time over the traced steps; None if there are none. [s]"""
    traced = [each.classes_s for each in steps if each.classes_s is not None]
    if not traced:
        return None
    return {name: math.fsum(each[name] for each in traced) / len(traced) for name in traced[0]}
