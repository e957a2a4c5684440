"""Assemble a step's result from its accounts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wattree.accounts.bill import cost_usd, embodied_gco2e, with_bill
from wattree.accounts.breakdown import time_parts
from wattree.accounts.class_sums import ClassSums, class_sums
from wattree.accounts.colocation import colocation_use
from wattree.accounts.energy_use import StepEnergy
from wattree.accounts.evidence import provenance_of
from wattree.accounts.executed import ExecutedStep
from wattree.accounts.expansion import tier_uses
from wattree.accounts.fabric import Rules
from wattree.accounts.input_pipeline import materials_use
from wattree.accounts.interval import intervals_of
from wattree.accounts.memory_use import PeakMemory, memory_use
from wattree.accounts.notes import assumptions_of
from wattree.accounts.pool_use import peak_flop_per_s, pool_uses
from wattree.hardware import Cluster
from wattree.job import WorkloadKind
from wattree.lowering.changed import changed_setting
from wattree.strategy.described import describe
from wattree.trace import Result, SimulationSize


def result_of(
    step: ExecutedStep,
    energy: StepEnergy,
    peak: PeakMemory,
    *,
    rules: Rules,
    memory_of: str | None = None,
) -> Result:
    """Return the figures of an executed step.

    Args:
        step: The step.
        energy: Its energy.
        peak: Its fullest rank.
        rules: By which it was executed.
        memory_of: As for `simulate`.
    """
    setting, job, cluster = step.setting, step.job, step.cluster
    trained = changed_setting(setting, step.strategy)
    step_s, ranks, nodes, batch = step.step_s, step.ranks, step.nodes, step.batch
    tokens_per_s = batch * job.data.sequence_length / step_s if setting.has_tokens else None
    needed = trained.model_flop * (batch / job.data.global_batch)
    sums = class_sums(step.trace)
    parts, (mfu, hfu) = time_parts(step.trace, sums.slowest), _utilization(step, sums, needed)
    tiers = tier_uses(step)
    result = Result(
        model=setting.model.name,
        cluster=_used(cluster, nodes),
        strategy=describe(step.strategy, setting.model),
        ranks=ranks,
        step_time_s=step_s,
        samples_per_s=batch / step_s,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=None if tokens_per_s is None else tokens_per_s / ranks,
        mfu=mfu,
        hfu=hfu,
        mfu_precision=setting.precision.value,
        model_flop_per_step=needed,
        parameters=trained.model.parameters,
        dense_parameters=None if trained is setting else setting.model.parameters,
        memory=memory_use(step, peak, tiers, memory_of=memory_of),
        time_s=parts,
        energy_j=with_bill(energy.use, cluster, nodes, step_s),
        average_power_w=energy.average_w,
        pue=cluster.site.pue,
        peak_power_w=energy.peak_w,
        cost_usd=cost_usd(cluster, nodes, step_s, energy.use.total),
        embodied_gco2e=embodied_gco2e(job, nodes, step_s),
        carbon_gco2e=cluster.site.carbon_gco2e(energy.use.total),
        provenance=provenance_of(step, sums, energy.use, peak),
        workload=job.workload.value,
        simulation=_size(step),
        assumed=assumptions_of(step, rules),
        pools=pool_uses(step, energy, sums),
        power=energy.over_time if step.detail else None,
        materials=materials_use(step, parts.exposed_materials),
        tiers=tiers,
        colocation=colocation_use(step, peak, parts.optimizer),
    )
    return _with_intervals(result, step, energy, peak, sums)


def _utilization(step: ExecutedStep, sums: ClassSums, needed_flop: float) -> tuple[float, float]:
    """Return MFU and HFU."""
    cluster, precision = step.job.cluster, step.setting.precision
    available = step.step_s * peak_flop_per_s(cluster, step.ranks, precision)
    # Of all ranks: what the model needs, recomputation and redundant work.
    executed = float((sums.flop * step.trace.graph.class_ranks).sum())
    return needed_flop / available, max(executed, needed_flop) / available


def _with_intervals(
    result: Result, step: ExecutedStep, energy: StepEnergy, peak: PeakMemory, sums: ClassSums
) -> Result:
    """Return the result with the intervals of its figures."""
    intervals = intervals_of(
        step,
        energy.use,
        peak,
        {
            "step_time_s": result.step_time_s,
            "samples_per_s": result.samples_per_s,
            "tokens_per_s": result.tokens_per_s,
            "memory.peak_bytes": result.memory.peak_bytes,
            "average_power_w": result.average_power_w,
            "energy_j": energy.use.total,
            "cost_usd": result.cost_usd,
            "carbon_gco2e": result.carbon_gco2e,
        },
        parts=result.time_s,
        slowest=sums.slowest,
    )
    trains = step.setting.job.workload is WorkloadKind.TRAIN
    return replace(
        result,
        interval=intervals.of,
        interval_parts=intervals.parts,
        # Classes are those of measured training steps.
        evidence_class=intervals.known.label if trains else "",
    )


def _size(step: ExecutedStep) -> SimulationSize:
    graph, trace = step.compilation.graph, step.trace
    tasks, events = graph.tasks, trace.events
    if trace.repeats is not None:
        for begin, end in trace.repeats.ranges:
            waits = (graph.latency_s[begin:end] > 0) & (graph.work_s[begin:end] > 0)
            tasks += trace.repeats.times * (end - begin)
            events += trace.repeats.times * (2 * (end - begin) + int(waits.sum()))
    return SimulationSize(
        tasks=tasks,
        events=events,
        rank_classes=len(graph.class_ranks),
        compile_s=step.compile_s,
        run_s=step.run_s,
    )


def _used(cluster: Cluster, nodes: Sequence[float]) -> str:
    """Return what people call the nodes that a job uses."""
    used = zip(nodes, cluster.pools, strict=True)
    return " + ".join(f"{nodes:.10g} x {pool.node.name}" for nodes, pool in used if nodes)
