"""The one function that joins capture, compiler, executor and energy: a job → a prediction."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattree.compiler import compile_job
from wattree.cost import load_calibration
from wattree.errors import JobError, StrategyError
from wattree.graph import TaskKind
from wattree.hardware import Cluster
from wattree.job import AUTO, Job
from wattree.predict.breakdown import slowest_class, time_parts
from wattree.predict.described import describe
from wattree.predict.energy_use import StepEnergy, step_energy
from wattree.predict.evidence import provenance_of
from wattree.predict.memory_use import PeakMemory, memory_use, peak_memory
from wattree.predict.model import check_recomputation
from wattree.predict.pool_use import cost_usd, peak_flop_per_s, pool_uses
from wattree.predict.setting import Setting, setting_of
from wattree.sim import play
from wattree.strategy import Strategy, StrategyOptions
from wattree.strategy.presets import strategy_of
from wattree.trace import PoolUse, Result, SimulationSize, Trace

__all__ = ["Prediction", "predicted", "simulate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A simulated step.

    Attributes:
        result: The figures.
        trace: When everything happened.
        power: Power of the job over the step: (time, W) pairs. [s, W]
        peak: Peak memory as three tools would report it. [B]
    """

    result: Result
    trace: Trace
    power: tuple[tuple[float, float], ...]
    peak: PeakMemory


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
        job = replace(job, cluster=job.cluster.limited(power_limit_w))
    setting = setting_of(job, load_calibration(calibration))
    if isinstance(job.strategy, str):
        raise JobError(
            job.source,
            [f"strategy: found '{AUTO}', expected a strategy to simulate; `plan` finds one"],
        )
    try:
        check_recomputation(job.strategy, setting.model)
        return predicted(setting, job.strategy, fold=fold, sharing=sharing)
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
    if isinstance(strategy, StrategyOptions):
        strategy = strategy_of(
            strategy, layers=setting.model.layers, global_batch=job.data.global_batch
        )
    began = time.perf_counter()
    compilation = compile_job(
        setting.model,
        strategy,
        job.cluster,
        rates=setting.pool_rates,
        software=setting.software,
        optimizer=job.optimizer,
        sequence=job.data.sequence_length,
        global_batch=job.data.global_batch,
        fold=fold,
        detail=detail,
    )
    compiled = time.perf_counter()
    trace = play(compilation.graph, sharing=sharing)
    ended = time.perf_counter()
    ranks, class_pools = strategy.mesh.ranks, compilation.class_pools
    energy = step_energy(trace, job.cluster, setting.precision, ranks, class_pools=class_pools)
    peak = peak_memory(trace, setting.calibration, job.cluster, class_pools)
    pools = pool_uses(
        trace,
        job.cluster,
        ranks,
        class_pools=class_pools,
        energy=energy,
        calibration=setting.calibration,
    )
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
        class_pools=class_pools,
        pools=pools,
        size=size,
    )
    return Prediction(result=result, trace=trace, power=energy.curve, peak=peak)


def _result(
    setting: Setting,
    strategy: Strategy,
    *,
    trace: Trace,
    energy: StepEnergy,
    peak: PeakMemory,
    class_pools: NDArray[np.int64],
    pools: tuple[PoolUse, ...],
    size: SimulationSize,
) -> Result:
    job = setting.job
    step_s, ranks = trace.makespan_s, strategy.mesh.ranks
    batch, sequence = job.data.global_batch, job.data.sequence_length
    needed = setting.model_flop
    executed = max(_executed_flop(trace), needed)
    available = step_s * peak_flop_per_s(job.cluster, ranks, setting.precision)
    carbon = job.cluster.site.carbon_gco2e_per_j
    return Result(
        model=setting.model.name,
        cluster=_used(job.cluster, ranks),
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
        memory=memory_use(peak),
        time_s=time_parts(trace, slowest_class(trace)),
        energy_j=energy.use,
        average_power_w=energy.average_w,
        peak_power_w=energy.peak_w,
        cost_usd=cost_usd(job.cluster, ranks, step_s),
        carbon_gco2e=None if carbon is None else carbon * energy.use.total,
        provenance=provenance_of(
            trace, setting.calibration, job, setting.software, class_pools=class_pools
        ),
        simulation=size,
        assumptions=_assumptions(setting, ranks),
        pools=pools,
    )


def _used(cluster: Cluster, ranks: int) -> str:
    """Return what people call the nodes that a job uses."""
    used = zip(cluster.pool_nodes(ranks), cluster.pools, strict=True)
    return " + ".join(f"{nodes} x {pool.node.name}" for nodes, pool in used if nodes)


def _executed_flop(trace: Trace) -> float:
    """Matrix FLOP of all ranks: what the model needs, recomputation and redundant work."""
    graph = trace.graph
    compute = graph.kind == TaskKind.COMPUTE
    first_stream = graph.stream_ids[graph.stream_offsets[:-1][compute]]
    ranks = graph.class_ranks[graph.stream_class[first_stream]]
    return float((graph.flop[compute] * ranks).sum())


def _assumptions(setting: Setting, ranks: int) -> tuple[str, ...]:
    notes = [f"software habits and efficiencies of '{setting.software.name}'"]
    operators = (o for block in setting.model.blocks.values() for o in block.operators)
    if any("experts" in operator.path for operator in operators):
        notes.append("experts receive equal numbers of tokens")
    notes.append("inputs are prefetched; only the first micro-batch waits for its data")
    cluster = setting.job.cluster
    for number, used in enumerate(cluster.pool_nodes(ranks), start=1):
        if not used:
            idle = cluster.pools[number - 1].label
            notes.append(f"pool {number} ({idle}) stays idle and counts for nothing: {ranks} ranks")
    return tuple(notes)
