"""The one function that joins capture, compiler, executor and energy: a job → a prediction."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattree.accounts.alive import with_alive
from wattree.accounts.bill import cost_usd, embodied_gco2e, with_bill
from wattree.accounts.breakdown import (
    slowest_class,
    starved_span,
    tasks_by_class,
    time_parts,
)
from wattree.accounts.colocation import colocation_notes, with_colocation
from wattree.accounts.energy_use import StepEnergy, step_energy
from wattree.accounts.evidence import provenance_of
from wattree.accounts.expansion import spilled_share, tier_notes, tier_uses, with_spill
from wattree.accounts.fabric import Rules
from wattree.accounts.materials import core_times_s, materials_use, notes_of_loading
from wattree.accounts.memory_use import PeakMemory, memory_use, peak_memory, process_bytes
from wattree.accounts.neighbours import Beside, beside, occupied_nodes
from wattree.accounts.overhead import communicators
from wattree.accounts.pool_use import peak_flop_per_s, pool_uses
from wattree.compiler import Compilation, MemoryLedger, compile_job
from wattree.cost import load_calibration
from wattree.errors import JobError, StrategyError
from wattree.graph import TaskKind
from wattree.hardware import Cluster
from wattree.job import Job, naming
from wattree.lowering.changed import changed_line, changed_setting
from wattree.lowering.idle import has_experts, idle_choices
from wattree.lowering.loading import Loading
from wattree.lowering.model import check_recomputation
from wattree.lowering.setting import Setting, setting_of
from wattree.lowering.step import PlacedJob
from wattree.predict.described import describe
from wattree.predict.example import missing_strategy
from wattree.predict.token_notes import token_note
from wattree.sim import play
from wattree.strategy import Strategy, StrategyOptions
from wattree.strategy.presets import strategy_of
from wattree.trace import (
    MemoryUse,
    NeighbourEffect,
    PoolUse,
    Result,
    SimulationSize,
    TierUse,
    Trace,
)

__all__ = ["Prediction", "compilation_of", "predicted", "simulate"]

#: Rank classes that are asked how long they wait: the first, as others wait alike.
_MOST_CLASSES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A simulated step.

    Attributes:
        result: The figures.
        trace: When everything happened.
        power: Power of the job over the step: (time, W) pairs. [s, W]
        peak: Peak memory as three tools would report it. [B]
        warnings: What the job says to no effect on this model, and what could not be told of it
            for certain; what the job's file alone tells is in `Job.warnings`.
        ledger: What the memory of the trace's tasks is made of; None if nobody kept it.
        beside: The step beside the job's neighbours; None if it has none.
        loading: What loading data is to the ranks of each pool; empty where nothing is known.
        curves: Power over the step of one device of each rank class, of nodes around them, and of
            all, by name: (time, W) pairs. [s, W]
    """

    result: Result
    trace: Trace
    power: tuple[tuple[float, float], ...]
    peak: PeakMemory
    warnings: tuple[str, ...] = ()
    ledger: MemoryLedger | None = None
    beside: Beside | None = None
    loading: tuple[Loading, ...] = ()
    curves: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)


def simulate(
    job: Job,
    *,
    calibration: Path | None = None,
    fold: bool = True,
    sharing: str = "max-min",
    mutual_slowdown: bool = True,
    power_limit_w: float | None = None,
    memory_of: str | None = None,
) -> Prediction:
    """Predict time, memory, energy, money and carbon of one training step.

    Args:
        job: What to train, how, on what. Its strategy must be given, not `auto`.
        calibration: File of constants; the shipped one if None.
        fold: Play one rank for all that do the same.
        sharing: What happens where flows meet on a link, as `wattree.sim.play` knows it.
        mutual_slowdown: Computation and communication of a rank slow each other.
        power_limit_w: Cap on each device, over what the job says. [W]
        memory_of: Ranks whose memory is told in full, through a model of the allocator: a rank
            class by its name in the trace, or `fullest`.

    Raises:
        StrategyError: The strategy does not fit model or cluster; the message names the job.
        WattreeError: The job is impossible; the message says where and what to do.
    """
    if power_limit_w is not None:
        job = job.capped(power_limit_w)
    setting = setting_of(job, load_calibration(calibration))
    if isinstance(job.strategy, str):
        raise JobError(job.source, [missing_strategy(setting, "simulate")])
    with naming(job):
        check_recomputation(job.strategy, setting.model)
        prediction = predicted(
            setting,
            job.strategy,
            fold=fold,
            sharing=sharing,
            mutual_slowdown=mutual_slowdown,
            memory_of=memory_of,
        )
        if job.neighbours:
            prediction = _beside_neighbours(
                setting,
                job.strategy,
                prediction,
                fold=fold,
                rules=Rules(sharing=sharing, mutual_slowdown=mutual_slowdown),
            )
    told = (*idle_choices(job, setting.model), *setting.warnings)
    trained = changed_setting(setting, _written_out(setting, job.strategy)).model
    if trained is not setting.model:
        told = (changed_line(setting.model, trained), *told)
    return replace(prediction, warnings=told)


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
    """Return the prediction of one strategy of a job.

    Args:
        setting: What all strategies of the job share.
        strategy: The one to predict.
        fold: Play one rank for all that do the same.
        detail: A task per operator in the trace; otherwise undisturbed runs are one task, unless
            the rules slow whole tasks (`proteus`), for which it matters what a task is.
        sharing, mutual_slowdown: As `simulate` knows them.
        memory_of: As for `simulate`; needs `detail`.

    Raises:
        StrategyError: It does not fit model or cluster.
    """
    job = setting.job
    strategy = _written_out(setting, strategy)
    began = time.perf_counter()
    detail = detail or sharing == "proteus"
    compilation = compilation_of(setting, strategy, fold=fold, detail=detail)
    compiled = time.perf_counter()
    trace = play(compilation.graph, sharing=sharing, mutual_slowdown=mutual_slowdown)
    spilled = 0.0
    if strategy.traffic.offload.overflow is not None:
        # What is kept when depends on no bandwidth, so the first play tells what overflows.
        spilled = _spilled(setting, strategy, trace)
    if spilled > 0:
        compilation = compilation_of(setting, strategy, fold=fold, detail=detail, spilled=spilled)
        trace = play(compilation.graph, sharing=sharing, mutual_slowdown=mutual_slowdown)
    ended = time.perf_counter()
    ranks, class_pools = strategy.mesh.ranks, compilation.class_pools
    energy = step_energy(
        trace,
        job.cluster,
        setting.powers,
        ranks,
        class_pools=class_pools,
        nodes=occupied_nodes(job, ranks),
        core_s=core_times_s(compilation.loading),
    )
    groups = communicators(compilation)
    colocation = strategy.colocation
    peak = peak_memory(
        trace, setting.calibration, job.cluster, class_pools, groups, processes=colocation.processes
    )
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
    tiers = tier_uses(
        compilation.tiers,
        trace,
        spilled=spilled,
        cluster=job.cluster,
        calibration=setting.calibration,
        ranks=ranks,
    )
    memory = with_spill(memory_use(peak), peak, spilled, tiers)
    if detail:
        memory = with_alive(
            memory,
            trace,
            compilation.ledger,
            fullest=peak.rank_class,
            allocator=setting.software.allocator,
            beside=peak.process - peak.reserved,
            asked=memory_of,
        )
    result = _result(
        setting,
        strategy,
        trace=trace,
        memory=memory,
        class_pools=class_pools,
        pools=pools,
        energy=energy,
        detail=detail,
        size=size,
        loading=compilation.loading,
        rules=(
            *tier_notes(job.cluster, strategy.traffic.offload, spilled),
            *_rule_notes(sharing, mutual_slowdown=mutual_slowdown),
        ),
        tiers=tiers,
    )
    result = with_colocation(result, setting, colocation, compilation, peak)
    return Prediction(
        result=result,
        trace=trace,
        power=energy.curve,
        peak=peak,
        ledger=compilation.ledger,
        loading=compilation.loading,
        curves=energy.curves(trace.graph.class_names) if detail else {},
    )


def compilation_of(
    setting: Setting,
    strategy: Strategy,
    *,
    fold: bool = True,
    detail: bool = True,
    spilled: float = 0.0,
) -> Compilation:
    """Return what is played for one strategy of a job.

    Args:
        setting: What all strategies of the job share.
        strategy: The one to compile.
        fold: One rank class for all ranks that do the same.
        detail: A task per operator; otherwise undisturbed runs are one task.
        spilled: Share of what is on the devices that overflows to expanded memory.

    Raises:
        StrategyError: It does not fit model or cluster.
    """
    job = PlacedJob.of(setting, strategy, spilled=spilled)
    return compile_job(job, setting.job.cluster, fold=fold, detail=detail)


def _spilled(setting: Setting, strategy: Strategy, trace: Trace) -> float:
    """Return the share of what is on the fullest device that overflows."""
    device = setting.job.cluster.node.device
    footprint = process_bytes(trace.peak_bytes.max(), setting.calibration, device)
    return float(spilled_share(footprint, device.memory_bytes, strategy.traffic.offload))


def _written_out(setting: Setting, strategy: Strategy | StrategyOptions) -> Strategy:
    """Return a strategy with its tree."""
    if isinstance(strategy, Strategy):
        return strategy
    batch = setting.job.data.global_batch
    return strategy_of(strategy, model=setting.model, global_batch=batch)


def _beside_neighbours(
    setting: Setting,
    strategy: Strategy | StrategyOptions,
    found: Prediction,
    *,
    fold: bool,
    rules: Rules,
) -> Prediction:
    """Return the prediction with the step beside the job's neighbours."""
    if strategy.traffic.offload.overflow:
        raise StrategyError(
            {
                "strategy.offload.overflow": "found beside neighbours; expected a job alone, as "
                "what overflows is known only when it was played"
            }
        )
    there = beside(
        setting,
        _written_out(setting, strategy),
        found.trace,
        fold=fold,
        rules=rules,
        core_s=core_times_s(found.loading),
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
    detail: bool,
    memory: MemoryUse,
    class_pools: NDArray[np.int64],
    pools: tuple[PoolUse, ...],
    size: SimulationSize,
    loading: tuple[Loading, ...],
    rules: tuple[str, ...],
    tiers: tuple[TierUse, ...],
) -> Result:
    job = setting.job
    trained = changed_setting(setting, strategy)
    step_s, ranks = trace.makespan_s, strategy.mesh.ranks
    colocation, has_tokens = strategy.colocation, setting.has_tokens
    batch = colocation.samples(job.data.global_batch)
    tokens_per_s = batch * job.data.sequence_length / step_s
    needed = trained.model_flop * (batch / job.data.global_batch)
    executed = max(_executed_flop(trace), needed)
    available = step_s * peak_flop_per_s(job.cluster, ranks, setting.precision)
    nodes = occupied_nodes(job, ranks)
    carbon = job.cluster.site.carbon_gco2e_per_j
    parts = time_parts(trace, slowest_class(trace))
    schedule = strategy.schedule
    loaded = schedule.micro_batches / schedule.placed(strategy.mesh.degree("pp")).copies
    return Result(
        model=setting.model.name,
        cluster=_used(job.cluster, nodes),
        strategy=describe(strategy, setting.model),
        ranks=ranks,
        step_time_s=step_s,
        samples_per_s=batch / step_s,
        tokens_per_s=tokens_per_s if has_tokens else None,
        tokens_per_s_per_device=tokens_per_s / ranks if has_tokens else None,
        mfu=needed / available,
        hfu=executed / available,
        mfu_precision=setting.precision.value,
        model_flop_per_step=needed,
        parameters=trained.model.parameters,
        dense_parameters=None if trained is setting else setting.model.parameters,
        memory=memory,
        time_s=parts,
        energy_j=with_bill(energy.use, job.cluster, nodes, step_s),
        average_power_w=energy.average_w,
        peak_power_w=energy.peak_w,
        cost_usd=cost_usd(job.cluster, nodes, step_s, energy.use.total),
        embodied_gco2e=embodied_gco2e(job, nodes, step_s),
        carbon_gco2e=None if carbon is None else carbon * energy.use.total,
        provenance=provenance_of(
            trace, setting.calibration, job, setting.software, class_pools=class_pools
        ),
        simulation=size,
        assumptions=(
            *_assumptions(setting, strategy),
            *colocation_notes(colocation, setting),
            *notes_of_loading(loading, loaded, has_ids=setting.model.own_family),
            *_idle_pools(setting, strategy),
            *rules,
        ),
        pools=pools,
        power=energy.over_time if detail else None,
        materials=materials_use(
            loading,
            global_batch=batch,
            micro_batches=loaded,
            step_s=step_s,
            exposed_s=_starved_s(trace, loading, parts.exposed_materials),
        ),
        tiers=tiers,
    )


def _starved_s(trace: Trace, loading: Sequence[Loading], slowest_s: float) -> float:
    """Return what the ranks wait for data that wait longest. [s]

    All wait alike for what is made ahead; only those that load wait for copies in their line.
    """
    if not loading or loading[0].loader.pinned:
        return slowest_s
    starved = starved_span(trace)
    classes = min(len(trace.graph.class_ranks), _MOST_CLASSES)
    return max(
        time_parts(trace, number, mine, starved=starved).exposed_materials
        for number, mine in enumerate(tasks_by_class(trace, classes))
    )


def _used(cluster: Cluster, nodes: Sequence[float]) -> str:
    """Return what people call the nodes that a job uses."""
    used = zip(nodes, cluster.pools, strict=True)
    return " + ".join(f"{nodes:.10g} x {pool.node.name}" for nodes, pool in used if nodes)


def _executed_flop(trace: Trace) -> float:
    """Matrix FLOP of all ranks: what the model needs, recomputation and redundant work."""
    graph = trace.graph
    compute = graph.kind == TaskKind.COMPUTE
    first_stream = graph.stream_ids[graph.stream_offsets[:-1][compute]]
    ranks = graph.class_ranks[graph.stream_class[first_stream]]
    return float((graph.flop[compute] * ranks).sum())


def _rule_notes(sharing: str, *, mutual_slowdown: bool) -> tuple[str, ...]:
    """Return what a reader must know of rules that are not the usual ones."""
    notes: tuple[str, ...] = ()
    if sharing != "max-min":
        notes = (
            f"links shared by the rule '{sharing}', under which slow links are as fast as any",
        )
    if mutual_slowdown:
        return notes
    return (*notes, "computation and communication do not slow each other")


def _assumptions(setting: Setting, strategy: Strategy) -> tuple[str, ...]:
    notes = [f"software habits and efficiencies of '{setting.software.name}'"]
    if has_experts(setting.model):
        notes.append(token_note(setting.model, strategy, setting.software))
    if strategy.traffic.offload.tiers:
        notes.append(
            "memory behind the devices and the links to it draw no energy beyond the host's own"
        )
    return tuple(notes)


def _idle_pools(setting: Setting, strategy: Strategy) -> tuple[str, ...]:
    notes, cluster = [], setting.job.cluster
    for number, used in enumerate(cluster.pool_nodes(strategy.mesh.ranks), start=1):
        if not used:
            idle = cluster.pools[number - 1].label
            notes.append(
                f"pool {number} ({idle}) stays idle and counts for nothing: "
                f"{strategy.mesh.ranks} ranks"
            )
    return tuple(notes)
