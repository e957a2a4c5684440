"""Assemble a step's result from its accounts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wattree.accounts.bill import carbon_gco2e, cost_usd, embodied_gco2e, used_nodes, with_bill
from wattree.accounts.breakdown import time_parts
from wattree.accounts.class_sums import ClassSums, class_sums
from wattree.accounts.energy_use import StepEnergy
from wattree.accounts.evidence import provenance_of
from wattree.accounts.executed import ExecutedStep
from wattree.accounts.expansion import tier_notes, tier_uses
from wattree.accounts.fabric import Rules
from wattree.accounts.goodput import run_step
from wattree.accounts.input_pipeline import materials_use, notes_of_loading
from wattree.accounts.interval import intervals_of
from wattree.accounts.memory_use import PeakMemory, memory_use
from wattree.accounts.pool_use import peak_flop_per_s, pool_uses
from wattree.accounts.shares import waiting_share
from wattree.accounts.unmeasured import software_note, unmeasured
from wattree.graph import OperatorKind
from wattree.hardware import Cluster
from wattree.hardware.mps import sharing_note
from wattree.job import WorkloadKind
from wattree.lowering.changed import changed_setting
from wattree.lowering.colocation import step_barrier_s
from wattree.lowering.idle import has_experts
from wattree.lowering.setting import Setting
from wattree.strategy import (
    FIXED_PER_PROCESS,
    MPS,
    TIME_SLICED,
)
from wattree.strategy.described import describe
from wattree.trace import ColocationUse, Result, SimulationSize
from wattree.units import counted

#: Share of the computing that says what bounds it.
_MAINLY = 0.5


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
        memory_of: As for `simulate`.
    """
    setting, job, cluster = step.setting, step.job, step.cluster
    trained = changed_setting(setting, step.strategy)
    step_s, ranks, nodes, batch = step.step_s, step.ranks, step.nodes, step.batch
    tokens_per_s = batch * job.data.sequence_length / step_s if setting.has_tokens else None
    needed = trained.model_flop(step.strategy) * (batch / job.data.global_batch)
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
        mfu_precision=setting.peak_precision.value,
        model_flop_per_step=needed,
        parameters=trained.model.parameters,
        dense_parameters=None if trained is setting else setting.model.parameters,
        memory=memory_use(step, peak, tiers, memory_of=memory_of),
        time_s=parts,
        energy_j=with_bill(energy.use, job, nodes),
        average_power_w=energy.average_w,
        pue=cluster.site.pue,
        peak_power_w=energy.peak_w,
        cost_usd=cost_usd(cluster, nodes, step_s, energy.use.total),
        embodied_gco2e=embodied_gco2e(job, nodes, step_s),
        carbon_gco2e=carbon_gco2e(job, nodes, step_s, energy.use.total),
        run_step=run_step(trained, used_nodes(job, ranks), step_s, energy.use.total),
        provenance=provenance_of(step, sums, energy.use, peak),
        workload=job.workload.value,
        simulation=_size(step),
        assumed=(*assumptions_of(step, rules), *_above_peak(hfu, setting)),
        pools=pool_uses(step, energy, sums),
        power=energy.over_time if step.detail else None,
        materials=materials_use(step, parts.exposed_materials),
        tiers=tiers,
        colocation=colocation_use(step, peak, parts.optimizer),
    )
    return _with_intervals(result, step, energy, peak, sums)


def _utilization(step: ExecutedStep, sums: ClassSums, needed_flop: float) -> tuple[float, float]:
    """Return MFU and HFU."""
    cluster, precision = step.job.cluster, step.setting.peak_precision
    available = step.step_s * peak_flop_per_s(cluster, step.ranks, precision)
    # Of all ranks: what the model needs, recomputation and redundant work.
    executed = float((sums.flop * step.trace.graph.class_ranks).sum())
    return needed_flop / available, max(executed, needed_flop) / available


def _above_peak(hfu: float, setting: Setting) -> tuple[str, ...]:
    """Return why more FLOP are counted than the peak allows, if they are."""
    if hfu <= 1.0:
        return ()
    found: list[str] = []
    pools = zip(setting.job.cluster.pools, setting.pool_rates, strict=True)
    if any(
        rates.attention_flop_per_s > pool.node.device.matrix_peak_flop_per_s(setting.precision)
        for pool, rates in pools
    ):
        found.append(
            "HFU is of the fp32 peak, which attention exceeds: PyTorch's kernels compute each of "
            "its products of 32 bits as three in TF32"
        )
    if any(operator.kind is OperatorKind.CONVOLUTION for operator in setting.model.operators):
        found.append(
            "convolutions count the FLOP of direct ones; Winograd's and Fourier's algorithms, "
            "which take fewer, exceed the peak"
        )
    return tuple(found)


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


def assumptions_of(step: ExecutedStep, rules: Rules) -> tuple[str, ...]:
    """Return one sentence for each assumption."""
    notes = [software_note(step.setting)]
    if has_experts(step.setting.model):
        notes.append(_token_note(step))
    if step.strategy.traffic.offload.tiers:
        notes.append("offload memory and the links to it use no energy beyond that of the host")
    return (
        *notes,
        *unmeasured(step.setting),
        *_late_launches(step),
        *_idle_nodes(step),
        *_idle_devices(step),
        *step.job.assumed,
        *colocation_notes(step),
        *notes_of_loading(step),
        *tier_notes(step),
        *_rule_notes(rules),
    )


def _late_launches(step: ExecutedStep) -> list[str]:
    """Return that what counts as computing is mostly waiting for launches, where it is."""
    waits = waiting_share(step.compilation)
    if waits <= _MAINLY:
        return []
    return [
        f"devices wait {100 * waits:.0f} % of the computing for their host, which launches one "
        "kernel after another ('host' in 'explain'); where steps are captured as CUDA graphs: "
        "traits: {cuda_graphs: full}"
    ]


def _token_note(step: ExecutedStep) -> str:
    """Return how many tokens experts get, and how many are dropped."""
    strategy, places = step.strategy, step.compilation.program.expert_places
    load = strategy.expert_load
    if load is None or not places:
        return "experts receive equal numbers of tokens"
    place = places[0]
    ranks = strategy.mesh.size(place.axes)
    dropless = step.setting.software.moe_dropless
    tokens = load.taken(experts=place.experts, ranks=ranks, dropless=dropless)
    note = (
        f"the busiest of {ranks} expert-parallel ranks takes {tokens.max():.3g} x the mean tokens"
    )
    dropped = 1.0 - float(tokens.mean())
    return note if dropped < 1e-12 else f"{note}; {dropped:.2%} of routed tokens are dropped"


def _idle_devices(step: ExecutedStep) -> list[str]:
    pools = zip(step.cluster.pools, step.nodes, strict=True)
    held = sum(nodes * pool.node.devices for pool, nodes in pools)
    if held - step.ranks < 1:
        return []
    ranks = counted(step.ranks, "rank")
    return [f"cost and energy include idle devices of used nodes: {held:.10g} devices for {ranks}"]


def _idle_nodes(step: ExecutedStep) -> list[str]:
    if step.job.devices is not None:
        return []  # what of others the rest is full of
    used = step.cluster.pool_nodes(step.ranks)
    return [
        f"{pool.nodes - nodes} of {pool.label} idle: its energy, rent and carbon are not counted"
        for pool, nodes in zip(step.cluster.pools, used, strict=True)
        if nodes < pool.nodes
    ]


def _rule_notes(rules: Rules) -> list[str]:
    """Return what a reader must know of rules that are not the usual ones."""
    notes = []
    if rules.sharing != "max-min":
        notes.append(
            f"links are shared by the rule '{rules.sharing}', which ignores that some are slow"
        )
    if not rules.mutual_slowdown:
        notes.append("computation and communication do not slow each other")
    return notes


def colocation_use(step: ExecutedStep, peak: PeakMemory, update_s: float) -> ColocationUse | None:
    """Return the terms of several processes on each device; None where there is one.

    Args:
        peak: Memory of one process on the fullest device.
        update_s: What the optimizer takes of the slowest ranks' step. [s]
    """
    shared, colocation = step.compilation.shared, step.strategy.colocation
    if shared is None:
        return None
    count, in_turn = colocation.processes, colocation.sharing == TIME_SLICED
    sharing = step.setting.rates.shared(count, in_turn=in_turn).sharing
    demand_s, filled_s = float(shared.demand_s[0]), float(shared.filled_s[0])
    step_s = step.step_s
    used_s = count * (filled_s if sharing.overlaps else demand_s) + update_s
    return ColocationUse(
        processes_per_device=count,
        batch_rule=colocation.batch_rule,
        device_sharing=colocation.sharing,
        samples_per_process=colocation.process_batch(step.job.data.global_batch) / step.ranks,
        utilization=min(used_s / step_s, 1.0) if step_s > 0 else 0.0,
        host_s=float(shared.think_s[0]),
        device_s=demand_s,
        waits_s=float(shared.residence_s[0]) - demand_s,
        barrier_s=float(step_barrier_s(shared, count)[0]),
        update_s=update_s,
        fill=filled_s / demand_s if demand_s > 0 else 0.0,
        contention=sharing.contention,
        memory_bytes_per_process=peak.process,
    )


def colocation_notes(step: ExecutedStep) -> tuple[str, ...]:
    """Return what a reader must know of a prediction for several processes on a device."""
    colocation = step.strategy.colocation
    if not colocation.is_several:
        return ()
    what = (
        "processes of a device run the step at the same time, and average their gradients in its "
        "memory before one of them takes part in collectives between devices"
    )
    notes = [what]
    device = step.cluster.pools[0].node.device
    if device.kind != "cpu":
        notes.append(
            "processes slow each other only by the share of the device that their kernels "
            "occupy; any further slowdown is not measured, so gains are upper bounds"
        )
    if note := sharing_note(device, colocation.processes, mps=colocation.sharing == MPS):
        notes.append(note)
    if colocation.batch_rule == FIXED_PER_PROCESS:
        notes.append(
            f"each step has {colocation.processes} times the samples of data.global_batch, so the "
            "learning rate has to follow"
        )
    return tuple(notes)
