"""Simulate a job: combines capture, compiler, executor and accounts to a prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from wattree.accounts.energy_use import energy_of, powers_of
from wattree.accounts.executed import ExecutedStep
from wattree.accounts.fabric import Rules
from wattree.accounts.generation import CountedStep, DecodeSteps, generation_result
from wattree.accounts.input_pipeline import core_times_s
from wattree.accounts.memory_use import PeakMemory, peak_memory
from wattree.accounts.neighbours import SharedFabricStep, shared_fabric_step, with_neighbours
from wattree.accounts.result import result_of
from wattree.compiler import MemoryLedger
from wattree.cost import load_calibration
from wattree.energy import DevicePower
from wattree.errors import JobError
from wattree.job import Job, naming
from wattree.job.entered import entering, watts
from wattree.job.idle import idle_limits
from wattree.lowering.changed import changed_line, changed_setting, copied_heads_lines
from wattree.lowering.idle import idle_choices
from wattree.lowering.loading import Loading
from wattree.lowering.model import check_recomputation
from wattree.lowering.setting import Setting
from wattree.predict.example import missing_strategy
from wattree.predict.execute import executed, written_out
from wattree.predict.generation import generation_steps, of_batches, workload_setting
from wattree.predict.left_open import setting_of
from wattree.shown import Shown
from wattree.strategy import Strategy, StrategyOptions
from wattree.trace import Result, Trace


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prediction(Shown):
    """A simulated step.

    Attributes:
        result: The figures.
        whole: Returns trace and ledger, and makes them when they are first asked for.
        power: Power of the job over the step: (time, W) pairs. [s, W]
        peak: Peak memory as three tools would report it. [B]
        strategy: The simulated one, with what its job left open; None where it is of no job.
        warnings: Settings without effect on this model, and its uncertain properties; those of
            the job's file are in `Job.warnings`.
        shared_fabric_step: The step with the job's neighbors; None if it has none.
        loading: The input pipeline of the ranks of each pool; empty without a loader.
        powers: What the devices of each pool draw.
        curves: Power of one device of each rank class, of their nodes, and of all.
    """

    result: Result
    whole: Callable[[], tuple[Trace, MemoryLedger]] = field(compare=False)
    power: tuple[tuple[float, float], ...]
    peak: PeakMemory
    strategy: Strategy | StrategyOptions | None = None
    warnings: tuple[str, ...] = ()
    shared_fabric_step: SharedFabricStep | None = None
    loading: tuple[Loading, ...] = ()
    powers: tuple[DevicePower, ...] = ()
    curves: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.result)

    @property
    def trace(self) -> Trace:
        """Start and end of every task."""
        return self.whole()[0]

    @property
    def ledger(self) -> MemoryLedger:
        """The tensors in the memory of the trace's tasks."""
        return self.whole()[1]

    def records(self) -> Sequence[Mapping[str, Any]]:
        """Return the figures."""
        return self.result.records()

    def as_json(self) -> dict[str, Any]:
        """Return the figures as the result has them."""
        return self.result.as_json()


@entering(power_limit_w=watts)
def simulate(
    job: Job,
    *,
    calibration: str | Path | None = None,
    fold: bool = True,
    sharing: str = "max-min",
    mutual_slowdown: bool = True,
    power_limit_w: float | None = None,
    memory_of: str | None = None,
) -> Prediction:
    """Predict time, memory, energy, money and carbon of one step, or of generation of a batch.

    Args:
        job: Model, strategy and cluster. The strategy must be explicit, not `auto`.
        calibration: File of constants; the shipped one if None.
        fold: Simulate one rank for all ranks with the same work.
        sharing: Rule by which flows share a link, as for `wattree.sim.execute`.
        mutual_slowdown: Computation and communication of a rank slow each other.
        power_limit_w: Power limit of each device, instead of the job's. [W]
        memory_of: Ranks whose allocator is modeled: a class of the trace by name, or `fullest`.

    Raises:
        StrategyError: The strategy does not fit model or cluster; the message names the job.
        WattreeError: The job is impossible; the message says where and what to do.
    """
    limits = () if power_limit_w is None else (power_limit_w,)
    idle = idle_limits(job.cluster, limits, name="power_limit_w")
    job = job.capped(*limits) if limits else job
    setting = workload_setting(job, load_calibration(calibration))
    if isinstance(job.strategy, str):
        raise JobError(job.source, [missing_strategy(setting, "simulate")])
    with naming(job):
        chosen = setting.job.strategy
        assert not isinstance(chosen, str)
        check_recomputation(chosen, setting.model)
        strategy = written_out(setting, chosen)
        prediction = predicted(
            setting,
            strategy,
            fold=fold,
            sharing=sharing,
            mutual_slowdown=mutual_slowdown,
            memory_of=memory_of,
        )
        if job.neighbours:
            rules = Rules(sharing=sharing, mutual_slowdown=mutual_slowdown)
            there = shared_fabric_step(
                setting,
                strategy,
                prediction.trace,
                [setting_of(each.job, setting.calibration) for each in job.neighbours],
                fold=fold,
                rules=rules,
                powers=prediction.powers,
                core_s=core_times_s(prediction.loading),
            )
            result = with_neighbours(prediction.result, there.effect)
            prediction = replace(prediction, result=result, shared_fabric_step=there)
    return replace(prediction, strategy=chosen, warnings=(*idle, *_warnings(setting, strategy)))


def _warnings(setting: Setting, strategy: Strategy) -> tuple[str, ...]:
    """Return warnings for settings without effect, and for models changed by the strategy."""
    copied = copied_heads_lines(setting.model, strategy)
    warnings = (*copied, *idle_choices(setting.job, setting.model), *setting.warnings)
    trained = changed_setting(setting, strategy).model
    if trained is setting.model:
        return warnings
    return (changed_line(setting.model, trained), *warnings)


def predicted(
    setting: Setting,
    strategy: Strategy | StrategyOptions,
    *,
    fold: bool = True,
    detail: bool = True,
    sharing: str = "max-min",
    mutual_slowdown: bool = True,
    memory_of: str | None = None,
) -> Prediction:
    """Return the prediction of one strategy of a job: of its step, or of all of generation.

    Args:
        fold: Simulate one rank for all that do the same.
        detail: A task per operator in the trace; otherwise undisturbed runs are one task, unless
            the rules slow whole tasks (`proteus`), for which it matters what a task is.
        sharing, mutual_slowdown: As `simulate` knows them.
        memory_of: As for `simulate`; needs `detail`.

    Raises:
        StrategyError: It does not fit model or cluster.
    """
    if setting.decode is not None:
        how = {"sharing": sharing, "mutual_slowdown": mutual_slowdown, "memory_of": memory_of}
        return _generated(setting, strategy, fold=fold, detail=detail, **how)
    setting, rules = (
        setting.under(strategy),
        Rules(sharing=sharing, mutual_slowdown=mutual_slowdown),
    )
    detail = detail or sharing == "proteus"
    execute = partial(
        executed, setting, written_out(setting, strategy), fold=fold, detail=detail, rules=rules
    )
    step = execute(once=memory_of is None)
    powers = powers_of(step)
    energy, peak = energy_of(step, powers), peak_memory(step)
    return Prediction(
        result=result_of(step, energy, peak, rules=rules, memory_of=memory_of),
        whole=_Whole(step, execute),
        power=energy.curve,
        peak=peak,
        loading=step.compilation.loading,
        powers=powers,
        curves=energy.curves(step.trace.graph.class_names) if detail else {},
    )


class _Whole:
    """Trace of all tasks of a step, and their tensors: made once, when they are asked for."""

    def __init__(self, step: ExecutedStep, execute: Callable[[], ExecutedStep]) -> None:
        """Take the executed step, and what executes all of it."""
        self._step, self._execute = step, execute

    def __call__(self) -> tuple[Trace, MemoryLedger]:
        """Return trace and tensors."""
        if self._step.trace.repeats is not None:
            self._step = self._execute()
        return self._step.trace, self._step.compilation.ledger


def _generated(setting: Setting, strategy: Strategy | StrategyOptions, **how: Any) -> Prediction:
    """Return the prediction of all of generation; arguments as of `predicted`.

    Its trace, power and tensors are those of a step in the middle of generation.
    """
    data, whole = setting.job.data, written_out(setting, strategy)

    def step_of(step: Setting, times: int) -> Prediction:
        return predicted(step, of_batches(strategy, times), **how)

    found = generation_steps(
        setting,
        step_of,
        lambda each: each.result.step_time_s,
        stages=whole.stages,
        micro_batches=whole.schedule.micro_batches,
    )
    decode = [
        DecodeSteps(
            cache_length=length.cache_length,
            count=length.count,
            steps=tuple(
                CountedStep(times=float(times), result=each.result) for times, each in parts
            ),
        )
        for length, parts in found.decode
    ]
    result = generation_result(found.prefill.result, decode, data)
    middle = found.decode[len(found.decode) // 2][1][0][1] if found.decode else found.prefill
    return replace(middle, result=result)
