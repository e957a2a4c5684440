"""The terms of several processes on each device, out of what was compiled and played."""

from __future__ import annotations

from dataclasses import replace

from wattree.compiler import Compilation
from wattree.compiler.colocation import step_barrier_s
from wattree.predict.estimate import Degrees, screened
from wattree.predict.memory_use import PeakMemory
from wattree.predict.setting import Setting
from wattree.predict.tables import Tables
from wattree.strategy import FIXED_PER_PROCESS, TIME_SLICED, Colocation, StrategyOptions
from wattree.trace import ColocationUse, Result

__all__ = ["busy_share", "colocation_notes", "with_colocation"]


def busy_share(setting: Setting, options: StrategyOptions, step_s: float) -> float:
    """Return the share of a step in which a single process keeps its device busy, in [0, 1].

    Args:
        setting: The job.
        options: Data parallelism with one process on each device, which may share its state.
        step_s: The step. [s]
    """
    # What a device does for one of several processes with as many samples each is what it does
    # for one alone.
    beside = StrategyOptions(
        recompute=options.recompute, processes_per_device=2, batch_rule=FIXED_PER_PROCESS
    )
    alone = StrategyOptions(dp=options.replicas, micro_batch=options.micro_batch)
    degrees = Degrees.of([alone], setting.job.data.global_batch)
    program = screened(setting, beside, degrees).program
    tables = Tables(setting, beside, degrees, program, pool=0)
    demands = [0.0 if c.shared is None else float(c.shared.demand_s[0]) for c in tables.costs]
    demand_s = sum(demands[number] for number in program.instances)
    return min(demand_s * float(degrees.micro_batches[0]) / step_s, 1.0)


def with_colocation(
    result: Result,
    setting: Setting,
    colocation: Colocation,
    compilation: Compilation,
    peak: PeakMemory,
) -> Result:
    """Return the result with the terms of several processes on each device, if there are several.

    Args:
        result: Of the step.
        setting: The job.
        colocation: The processes.
        compilation: What was played.
        peak: Memory of one process on the fullest device.
    """
    shared = compilation.shared
    if shared is None:
        return result
    count, in_turn = colocation.processes, colocation.sharing == TIME_SLICED
    sharing = setting.rates.shared(count, in_turn=in_turn).sharing
    demand_s, filled_s = float(shared.demand_s[0]), float(shared.filled_s[0])
    step_s, update_s = result.step_time_s, result.time_s.optimizer
    used_s = count * (filled_s if sharing.overlaps else demand_s) + update_s
    use = ColocationUse(
        processes_per_device=count,
        batch_rule=colocation.batch_rule,
        device_sharing=colocation.sharing,
        samples_per_process=colocation.process_batch(setting.job.data.global_batch) / result.ranks,
        utilisation=min(used_s / step_s, 1.0) if step_s > 0 else 0.0,
        host_s=float(shared.think_s[0]),
        device_s=demand_s,
        waits_s=float(shared.residence_s[0]) - demand_s,
        barrier_s=float(step_barrier_s(shared, count)[0]),
        update_s=update_s,
        fill=filled_s / demand_s if demand_s > 0 else 0.0,
        contention=sharing.contention,
        memory_bytes_per_process=peak.process,
    )
    return replace(result, colocation=use)


def colocation_notes(colocation: Colocation, setting: Setting) -> tuple[str, ...]:
    """Return what a reader must know of a prediction for several processes on a device."""
    if not colocation.is_several:
        return ()
    what = (
        "processes of a device go through a step together, and average their gradients in its "
        "memory before one of them joins the collectives"
    )
    notes = [what]
    if setting.job.cluster.pools[0].node.device.kind != "cpu":
        notes.append(
            "kernels of one process do not slow those of another beside what they fill: no "
            "measurement says by how much, so gains are the most to be had"
        )
    if colocation.batch_rule == FIXED_PER_PROCESS:
        notes.append(
            f"each step has {colocation.processes} times the samples of data.global_batch, so the "
            "learning rate has to follow"
        )
    return tuple(notes)
