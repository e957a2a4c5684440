"""Observations of constants from a measured step or from the classes of a traced one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from wattree.accounts import constant_classes as names
from wattree.accounts.constant_classes import COMPUTING_CLASSES, constants_of
from wattree.accounts.interval import training_parts
from wattree.accounts.job_facts import facts_of
from wattree.accounts.known import measured_of
from wattree.cost.observations import COMPUTING, RESIDUAL, STEP, WHOLES, Observation
from wattree.cost.precisions import precision_class
from wattree.kineto.op_classes import (
    ATTENTION,
    COMMUNICATION,
    COPIES,
    ELEMENTWISE,
    HOST,
    OPTIMIZER,
    PRODUCTS,
)
from wattree.learn.measured_steps import WORK, without_profiler
from wattree.learn.own_steps import OwnStep
from wattree.lowering.setting import Setting
from wattree.strategy import StrategyOptions
from wattree.trace import IntervalPart, Result

#: Class of a trace → classes of constants that set its time. The others no constant sets.
_OF_TRACE: Mapping[str, tuple[str, ...]] = {
    PRODUCTS: (names.PRODUCTS, names.CONVOLUTION),
    ATTENTION: (names.ATTENTION,),
    ELEMENTWISE: (names.MEMORY,),
    COMMUNICATION: (names.LINKS, names.NETWORK, names.EXPERTS),
    HOST: (names.HOST, names.ROUTING, names.OVERHEAD),
}
_SET_BY = {**_OF_TRACE, COMPUTING: COMPUTING_CLASSES}
#: Classes that are observed together with another: the bandwidth of memory sets them all.
_WITH = {OPTIMIZER: ELEMENTWISE, COPIES: ELEMENTWISE}
#: Share of the step below which a class says nothing of its constants.
_LEAST = 0.02
#: Share of the step, measured and predicted, that classes must cover to stand for it.
_COVERED = 0.6
#: A class whose time vanishes behind others (overlap) is taken to keep this share of it.
_TRACE = 1e-2
#: Least spread of a class by itself: rows of whole steps determine the sum of classes, not each.
_CLASS_SPREAD = 0.1


def step_observation(setting: Setting, result: Result, measured_s: float) -> Observation:
    """Return what a measured step implies for the constants of its prediction."""
    device = setting.job.cluster.pools[0].node.device
    facts, constants = facts_of(setting, device, result.ranks), constants_of(setting, device)
    residuals = setting.calibration.residuals
    measured, spreads = measured_of(residuals, facts.kind), residuals.spreads
    parts = {name: part for name, part in result.interval_parts.items() if name in constants}
    shares = {name: part.share for name, part in parts.items()}
    known = facts.known(measured, shares, constants)
    parts_at_levels = training_parts(setting, parts, constants, device.name, measured)
    return Observation(
        what=STEP,
        job=Path(setting.job.source).name,
        device=device.name,
        software=facts.stated_software,
        kind=facts.kind,
        precision=precision_class(setting.precision),
        measured_s=measured_s,
        predicted_s=result.step_time_s,
        parts={**parts_at_levels, RESIDUAL: IntervalPart(share=1.0, spread=known.alike(spreads))},
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
        measured_s, predicted_s: Observed class → its time (`observed`); those that were not
            measured say nothing. [s]
    """
    predicted_s = {name: predicted_s[name] for name in measured_s}
    least_s = _LEAST * result.step_time_s
    covered_classes = [
        name
        for name, behind in _SET_BY.items()
        if min(measured_s.get(name, 0.0), predicted_s.get(name, 0.0)) > least_s
        and any(each in step.parts for each in behind)
    ]
    covered = min(
        math.fsum(times_s[name] for name in covered_classes) / math.fsum(times_s.values())
        for times_s in (measured_s, predicted_s)
    )
    if covered < _COVERED:
        return (step,)
    found = []
    for name in covered_classes:
        behind = {each: step.parts[each] for each in _SET_BY[name] if each in step.parts}
        whole = math.fsum(part.share for part in behind.values())
        if name == HOST:
            # What the device waits changes faster than what the host takes for its launches.
            whole = predicted_s[name] / result.step_time_s
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


def linearized(
    observation: Observation, latest: Result, latest_s: float, moves: Mapping[str, float]
) -> Observation:
    """Return an observation by the straight line through its latest prediction.

    Args:
        observation: Of a step or a class, as it was predicted first.
        latest: The step as it is predicted with the moves; its shares are those of the line.
        latest_s: The time that was observed, as it is predicted there. [s]
        moves: Class of constants → how far the logarithm of its time moved.
    """
    shares = latest.interval_parts if observation.what == STEP else observation.parts
    parts = {
        name: replace(part, share=shares[name].share if name in shares else 0.0)
        for name, part in observation.parts.items()
    }
    done = math.fsum(part.share * moves.get(name, 0.0) for name, part in parts.items())
    done += moves.get(observation.what, 0.0) if observation.what in WHOLES else 0.0
    predicted_s = max(latest_s, _TRACE * observation.predicted_s) * math.exp(-done)
    return replace(observation, parts=parts, predicted_s=predicted_s)


def mean(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def observed(classes_s: Mapping[str, float]) -> dict[str, float]:
    """Return class → its time, of classes that a trace tells apart and constants do not. [s]"""
    found: dict[str, float] = {}
    for name, seconds in classes_s.items():
        found[_WITH.get(name, name)] = found.get(_WITH.get(name, name), 0.0) + seconds
    found[COMPUTING] = math.fsum(classes_s[name] for name in (*WORK, HOST) if name in classes_s)
    return found


def measured_step(members: Sequence[OwnStep]) -> tuple[float, Mapping[str, float] | None]:
    """Return the step of several runs of one job, and its observed classes if they were timed. [s]

    A profiler slows the host of a device: times of other runs, if there are, are the step's, and
    otherwise the host is not observed.

    Raises:
        RunError: The times are of different jobs.
    """
    traced = [each for each in members if each.classes_s is not None]
    plain = [each for each in members if each.classes_s is None]
    step_s = mean([each.step_s for each in plain or members])
    if not traced:
        return step_s, _of_stages(members)
    sums: dict[str, float] = {}
    for each in traced:
        assert each.classes_s is not None
        classes_s = each.classes_s
        if plain:
            classes_s = without_profiler(classes_s, step_s, source=plain[0].source)
        for name, seconds in observed(classes_s).items():
            sums[name] = sums.get(name, 0.0) + seconds / len(traced)
    if not plain and any(each.slowed for each in traced):
        del sums[HOST]
    del sums[COMPUTING]  # its classes say it
    return step_s, sums


def _of_stages(members: Sequence[OwnStep]) -> Mapping[str, float] | None:
    """Return what runs computed and communicated; None if some did not time it. [s]

    Stages of a pipeline wait where they communicate, which is no matter of links.
    """
    strategy = members[0].job.strategy
    if not isinstance(strategy, StrategyOptions) or strategy.pp > 1:
        return None
    found = {}
    for name, stage in ((COMPUTING, "computing"), (COMMUNICATION, "communicating")):
        if not all(each.stages_s.get(stage) for each in members):
            return None
        found[name] = mean(each.stages_s[stage] for each in members)
    return found
