"""The terms of several processes on each device, out of what was compiled and played."""

from __future__ import annotations

from dataclasses import replace

from wattree.accounts.memory_use import PeakMemory
from wattree.compiler import Compilation
from wattree.lowering.colocation import step_barrier_s
from wattree.lowering.setting import Setting
from wattree.strategy import FIXED_PER_PROCESS, TIME_SLICED, Colocation
from wattree.trace import ColocationUse, Result

__all__ = ["colocation_notes", "with_colocation"]


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
