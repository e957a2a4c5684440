"""The runs of one job while constants are learned from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from wattree.cost import Calibration
from wattree.cost.observations import STEP, Observation
from wattree.errors import RunError
from wattree.job.workload import refuse_workload
from wattree.learn.observe import (
    class_observations,
    measured_step,
    observed,
    step_observation,
)
from wattree.learn.own_steps import OwnStep, doubts, refuse_contradictions
from wattree.learn.predicted_step import step_of
from wattree.predict import Setting, predicted, setting_of
from wattree.trace import Result


@dataclass(slots=True, kw_only=True)
class Case:
    """State of the runs of one job while learning.

    Attributes:
        setting: For any constants.
        job: File.
        measured_s: The step. [s]
        doubts: Of the measurements themselves.
        base, now: Predicted with the constants before, and with those of the last round.
        times_s: What was observed → as it is predicted now. [s]
        observations: Of the step, or of its classes if there is a trace.
        is_whole: Whether classes are of a step as it is, which no profiler slowed.
    """

    setting: Callable[[Calibration], Setting]
    job: str
    measured_s: float
    doubts: tuple[str, ...]
    base: Result
    now: Result
    times_s: Mapping[str, float]
    observations: tuple[Observation, ...]
    is_whole: bool = True

    @property
    def unexplained(self) -> float:
        """Logarithm of measured over predicted step time, where classes were observed."""
        if self.observations[0].what == STEP or not self.is_whole:
            return 0.0
        return math.log(self.measured_s / self.now.step_time_s)

    @property
    def error(self) -> float:
        """Logarithm of measured over first predicted step time."""
        return math.log(self.measured_s / self.base.step_time_s)

    def predict(self, constants: Calibration) -> None:
        """Predict the step, and the times that were observed of it, with other constants."""
        setting = self.setting(constants)
        assert not isinstance(setting.job.strategy, str)
        self.now = predicted(setting, setting.job.strategy, detail=False).result
        self.times_s = {STEP: self.now.step_time_s}
        if self.observations[0].what != STEP:
            self.times_s = observed(step_of(setting).classes_s)


def case_of(members: Sequence[OwnStep], base: Calibration) -> Case:
    """Return the runs of one job with its prediction; several runs count as their mean."""
    job = members[0].job
    refuse_workload(job, "calibrate")
    first = setting_of(job, base)
    whole = replace(first.job, left_open=())

    def setting(constants: Calibration) -> Setting:
        return setting_of(whole, constants, model=first.model)

    chosen = first.job.strategy
    if isinstance(chosen, str):
        raise RunError(
            job.source, ["strategy: is 'auto', expected what was run; 'wattree plan' finds one"]
        )
    result = predicted(first, chosen, detail=False).result
    for each in members:
        refuse_contradictions(each, first, result)
    measured_s, classes = measured_step(members)
    whole_step = step_observation(first, result, measured_s)
    observations: tuple[Observation, ...] = (whole_step,)
    times_s: Mapping[str, float] = {STEP: result.step_time_s}
    if classes is not None:
        of_classes_s = observed(step_of(first).classes_s)
        observations = class_observations(whole_step, result, classes, of_classes_s)
        times_s = {**times_s, **of_classes_s}
    return Case(
        setting=setting,
        job=job.source,
        measured_s=measured_s,
        doubts=tuple(doubts(members)),
        base=result,
        now=result,
        times_s=times_s,
        observations=observations,
        is_whole=not all(each.slowed for each in members),
    )
