"""The terms of several processes on each device, out of what was compiled and executed."""

from __future__ import annotations

from wattree.accounts.executed import ExecutedStep
from wattree.accounts.memory_use import PeakMemory
from wattree.lowering.colocation import step_barrier_s
from wattree.strategy import FIXED_PER_PROCESS, TIME_SLICED
from wattree.trace import ColocationUse


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
        "processes of a device go through a step together, and average their gradients in its "
        "memory before one of them joins the collectives"
    )
    notes = [what]
    if step.cluster.pools[0].node.device.kind != "cpu":
        notes.append(
            "kernels of one process slow those of another only by the share of the device that "
            "they fill; a further slowdown is not measured, so gains are upper bounds"
        )
    if colocation.batch_rule == FIXED_PER_PROCESS:
        notes.append(
            f"each step has {colocation.processes} times the samples of data.global_batch, so the "
            "learning rate has to follow"
        )
    return tuple(notes)
