"""A predicted step by the same classes as traces, so that both can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wattree.accounts import constant_classes as names
from wattree.accounts.breakdown import tasks_of, time_parts
from wattree.accounts.class_sums import class_sums
from wattree.accounts.fabric import Rules
from wattree.accounts.interval import time_interval
from wattree.accounts.shares import computing_shares
from wattree.cost import load_calibration
from wattree.errors import JobError
from wattree.graph import StageLabel, TaskKind
from wattree.job import Job
from wattree.kineto.op_classes import (
    ATTENTION,
    COMMUNICATION,
    DATA,
    ELEMENTWISE,
    HOST,
    OPTIMIZER,
    PRODUCTS,
    WAITING,
)
from wattree.learn.measured_steps import CLASSES
from wattree.predict import Setting, setting_of
from wattree.predict.execute import executed, written_out

#: Class of constants of computing → class of a trace.
_COMPUTING = {
    names.PRODUCTS: PRODUCTS,
    names.CONVOLUTION: PRODUCTS,
    names.ATTENTION: ATTENTION,
    names.MEMORY: ELEMENTWISE,
    names.HOST: HOST,
    names.ROUTING: HOST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStep:
    """The step of the slowest rank class.

    Attributes:
        setting: What it was predicted with.
        step_s: Predicted. [s]
        interval_s: Between which the step lies with 80 % probability. [s]
        classes_s: Class → its time; they add up to the step. [s]
        hidden_s: Overlapped communication. [s]
        collectives: In a step.
        tensor_bytes: Most that tensors take of a device. [B]
    """

    setting: Setting
    step_s: float
    interval_s: tuple[float, float]
    ranks: int
    classes_s: Mapping[str, float]
    hidden_s: float
    collectives: int
    tensor_bytes: float


def predicted_step(job: Job, calibration: str | Path | None = None) -> PredictedStep:
    """Return the predicted step of a job by class.

    Raises:
        WattreeError: The job cannot be predicted.
    """
    setting = setting_of(job, load_calibration(calibration))
    if isinstance(setting.job.strategy, str):
        raise JobError(job.source, ["strategy: is 'auto', expected what was run"])
    return step_of(setting)


def step_of(setting: Setting) -> PredictedStep:
    """Return the predicted step of a setting, for a job with a strategy."""
    chosen = setting.job.strategy
    assert not isinstance(chosen, str)
    rules = Rules(sharing="max-min", mutual_slowdown=True)
    step = executed(setting, written_out(setting, chosen), fold=True, detail=True, rules=rules)
    slowest = class_sums(step.trace).slowest
    parts = time_parts(step.trace, slowest)
    found = dict.fromkeys(CLASSES, 0.0)
    for name, share in computing_shares(step, as_seen=True).items():
        found[_COMPUTING[name]] += share * (parts.compute + parts.recomputation)
    found[OPTIMIZER] += parts.optimizer
    found[COMMUNICATION] += parts.exposed_communication
    found[WAITING] += parts.bubble
    found[DATA] += parts.exposed_materials
    found[HOST] += parts.other
    graph = step.trace.graph
    mine = tasks_of(step.trace, slowest)
    moves = np.isin(graph.kind[mine], (TaskKind.COLLECTIVE, TaskKind.TRANSFER))
    mine = mine[moves & (graph.stage[mine] == StageLabel.COMMUNICATING)]
    busy_s = float((step.trace.end_s[mine] - step.trace.start_s[mine]).sum())
    return PredictedStep(
        setting=setting,
        step_s=step.step_s,
        interval_s=time_interval(step, parts, slowest),
        ranks=step.ranks,
        classes_s=found,
        hidden_s=max(busy_s - parts.exposed_communication, 0.0),
        collectives=len(mine),
        tensor_bytes=float(step.trace.peak_bytes.max()),
    )
