"""The one function that joins capture, compiler, executor and energy: a job → a prediction."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from wattree.compiler import compile_job
from wattree.cost import load_calibration
from wattree.errors import JobError, StrategyError
from wattree.graph import TaskKind
from wattree.job import AUTO, Job
from wattree.predict.breakdown import slowest_class, time_parts
from wattree.predict.described import describe
from wattree.predict.energy_use import StepEnergy, step_energy
from wattree.predict.evidence import provenance_of
from wattree.predict.memory_use import PeakMemory, memory_use, peak_memory
from wattree.predict.model import check_recomputation
from wattree.predict.neighbours import Beside, beside, occupied_nodes
from wattree.predict.setting import Setting, setting_of
from wattree.sim import play
from wattree.strategy import Strategy, StrategyOptions
from wattree.strategy.presets import strategy_of
from wattree.trace import NeighbourEffect, Result, SimulationSize, Trace

__all__ = ["Prediction", "predicted", "simulate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A simulated step.

    Attributes:
        result: The figures.
        trace: When everything happened.
        power: Power of the job over the step: (time, W) pairs. [s, W]
        peak: Peak memory as three tools would report it. [B]
        beside: The step beside the job's neighbours; None if it has none.
    """

    result: Result
    trace: Trace
    power: tuple[tuple[float, float], ...]
    peak: PeakMemory
    beside: Beside | None = None


def simulate(
    job: Job,
    *,
    calibration: Path | None = None,
    fold: bool = True,
    sharing: str = "max-min",
    power_limit_w: float | None = None,
) -> Prediction:
    """Predict time, memory, energy, money and carbon of one training step.

    Args:
        job: What to train, how, on what. Its strategy must be given, not `auto`.
        calibration: File of constants; the shipped one if None.
        fold: Play one rank for all that do the same.
        sharing: How links are shared; `max-min`.
        power_limit_w: Cap on each device, over what the job says. [W]

    Raises:
        StrategyError: The strategy does not fit model or cluster; the message names the job.
        WattreeError: The job is impossible; the message says where and what to do.
    """
    if power_limit_w is not None:
        job = job.capped(power_limit_w)
    setting = setting_of(job, load_calibration(calibration))
    if isinstance(job.strategy, str):
        raise JobError(
            job.source,
            [f"strategy: found '{AUTO}', expected a strategy to simulate; `plan` finds one"],
        )
    try:
        check_recomputation(job.strategy, setting.model)
        found = predicted(setting, job.strategy, fold=fold, sharing=sharing)
        if not job.neighbours:
            return found
        return _beside_neighbours(setting, job.strategy, found, fold=fold, sharing=sharing)
    except StrategyError as error:
        error.args = (f"{job.source}: {error}",)  # who reads many files must know which it is
        raise


def predicted(
    setting: Setting,
    strategy: Strategy | StrategyOptions,
    *,
    fold: bool = True,
    detail: bool = True,
    sharing: str = "max-min",
) -> Prediction:
    """Return the prediction of one strategy of a job.

    Args:
        setting: What all strategies of the job share.
        strategy: The one to predict.
        fold: Play one rank for all that do the same.
        detail: A task per operator in the trace; otherwise undisturbed runs are one task.
        sharing: How links are shared.

    Raises:
        StrategyError: It does not fit model or cluster.
    """
    job = setting.job
    strategy = _written_out(setting, strategy)
    began = time.perf_counter()
    compilation = compile_job(
        setting.model,
        strategy,
        job.cluster,
        rates=setting.rates,
        software=setting.software,
        optimizer=job.optimizer,
        sequence=job.data.sequence_length,
        global_batch=job.data.global_batch,
        fold=fold,
        detail=detail,
        devices=None if job.devices is None else np.array(job.devices, dtype=np.int64),
    )
    compiled = time.perf_counter()
    trace = play(compilation.graph, sharing=sharing)
    ended = time.perf_counter()
    nodes = occupied_nodes(job, strategy.mesh.ranks)
    energy = step_energy(trace, job.cluster, setting.precision, strategy.mesh.ranks, nodes=nodes)
    peak = peak_memory(trace, setting.calibration, job.cluster.node.device)
    size = SimulationSize(
        tasks=compilation.graph.tasks,
        events=trace.events,
        rank_classes=len(compilation.graph.class_ranks),
        compile_s=compiled - began,
        run_s=ended - compiled,
    )
    result = _result(
        setting,
        strategy,
        trace=trace,
        energy=energy,
        peak=peak,
        size=size,
    )
    return Prediction(result=result, trace=trace, power=energy.curve, peak=peak)


def _written_out(setting: Setting, strategy: Strategy | StrategyOptions) -> Strategy:
    """Return a strategy with its tree."""
    if isinstance(strategy, Strategy):
        return strategy
    batch = setting.job.data.global_batch
    return strategy_of(strategy, layers=setting.model.layers, global_batch=batch)


def _beside_neighbours(
    setting: Setting,
    strategy: Strategy | StrategyOptions,
    found: Prediction,
    *,
    fold: bool,
    sharing: str,
) -> Prediction:
    """Return the prediction with the step beside the job's neighbours."""
    there = beside(
        setting, _written_out(setting, strategy), found.trace, fold=fold, sharing=sharing
    )
    result = replace(
        found.result,
        neighbours=there.effect,
        assumptions=(*found.result.assumptions, _beside_assumption(there.effect)),
    )
    return replace(found, result=result, beside=there)


def _beside_assumption(effect: NeighbourEffect) -> str:
    repeated = "neighbours repeat their steps without a pause"
    if effect.phases_given:
        return f"{repeated}, the first begun as early as their offsets say"
    plays = len(effect.plays)
    return f"{repeated}; {plays} phases of their steps against this one's are equally likely"


def _result(
    setting: Setting,
    strategy: Strategy,
    *,
    trace: Trace,
    energy: StepEnergy,
    peak: PeakMemory,
    size: SimulationSize,
) -> Result:
    job = setting.job
    step_s, ranks = trace.makespan_s, strategy.mesh.ranks
    batch, sequence = job.data.global_batch, job.data.sequence_length
    needed = setting.model_flop
    executed = max(_executed_flop(trace), needed)
    available = step_s * ranks * job.cluster.node.device.matrix_peak_flop_per_s(setting.precision)
    nodes = occupied_nodes(job, ranks)
    price = job.cluster.node.price_usd_per_s
    carbon = job.cluster.site.carbon_gco2e_per_j
    return Result(
        model=setting.model.name,
        cluster=f"{nodes:.10g} x {job.cluster.node.name}",
        strategy=describe(strategy, setting.model),
        ranks=ranks,
        step_time_s=step_s,
        samples_per_s=batch / step_s,
        tokens_per_s=batch * sequence / step_s,
        tokens_per_s_per_device=batch * sequence / step_s / ranks,
        mfu=needed / available,
        hfu=executed / available,
        mfu_precision=setting.precision.value,
        model_flop_per_step=needed,
        parameters=setting.model.parameters,
        memory=memory_use(peak, job.cluster.node.device.memory_bytes),
        time_s=time_parts(trace, slowest_class(trace)),
        energy_j=energy.use,
        average_power_w=energy.average_w,
        peak_power_w=energy.peak_w,
        cost_usd=None if price is None else price * nodes * step_s,
        carbon_gco2e=None if carbon is None else carbon * energy.use.total,
        provenance=provenance_of(trace, setting.calibration, job, setting.software),
        simulation=size,
        assumptions=_assumptions(setting),
    )


def _executed_flop(trace: Trace) -> float:
    """Matrix FLOP of all ranks: what the model needs, recomputation and redundant work."""
    graph = trace.graph
    compute = graph.kind == TaskKind.COMPUTE
    first_stream = graph.stream_ids[graph.stream_offsets[:-1][compute]]
    ranks = graph.class_ranks[graph.stream_class[first_stream]]
    return float((graph.flop[compute] * ranks).sum())


def _assumptions(setting: Setting) -> tuple[str, ...]:
    notes = [f"software habits and efficiencies of '{setting.software.name}'"]
    operators = (o for block in setting.model.blocks.values() for o in block.operators)
    if any("experts" in operator.path for operator in operators):
        notes.append("experts receive equal numbers of tokens")
    notes.append("inputs are prefetched; only the first micro-batch waits for its data")
    return tuple(notes)
