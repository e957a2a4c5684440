"""Peak memory by category, with what the framework adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattree.accounts.breakdown import tasks_of
from wattree.accounts.executed import ExecutedStep
from wattree.accounts.expansion import with_spill
from wattree.accounts.live import with_live_tensors
from wattree.accounts.moment import moment_of_start
from wattree.accounts.overhead import (
    class_process_bytes,
    overhead_parts,
    process_bytes,
    reserved_bytes,
    strategy_groups_bytes,
)
from wattree.trace import MemoryUse, TierUse, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """Peak of the fullest rank as three tools would report it. [B]

    Attributes:
        rank_class: The fullest class: with the least free memory at its peak, as a share of its
        device.
        tensors: Live tensors as the executor counts them (`torch.cuda.max_memory_allocated`).
        reserved: What the caching allocator holds (`max_memory_reserved`).
        process: What the driver counts (`nvidia-smi`): with context and communicators.
        by_category: Parts of `process`.
        first_tensors: Live tensors at the peak of the ranks of the first stage.
        processes: That share the device and hold as much each: all but `capacity` is of one.
    """

    rank_class: int
    capacity: float
    tensors: float
    reserved: float
    process: float
    by_category: dict[str, float]
    first_tensors: float
    processes: int = 1


def peak_memory(step: ExecutedStep) -> PeakMemory:
    """Return the peak of the fullest rank."""
    trace, cluster = step.trace, step.cluster
    class_pools = step.compilation.class_pools
    capacities = np.array([pool.node.device.memory_bytes for pool in cluster.pools])
    fullest = int(np.argmax(class_process_bytes(step) / capacities[class_pools]))
    node = cluster.pools[class_pools[fullest]].node
    own = step.compilation.class_parts[fullest]
    device = node.device
    groups = float(strategy_groups_bytes(step.strategy, node, step.setting)[own])
    parts = _at_peak(trace, fullest)
    tensors = float(sum(parts.values()))
    reserved = float(reserved_bytes(np.array(tensors), step.setting))
    process = float(process_bytes(np.array(tensors), step.setting, device, groups))
    overhead = overhead_parts(tensors, step.setting, device, groups)
    for category, size in overhead.items():
        parts[category] = parts.get(category, 0.0) + size
    return PeakMemory(
        rank_class=fullest,
        capacity=device.memory_bytes,
        tensors=tensors,
        reserved=reserved,
        process=process,
        by_category=parts,
        first_tensors=float(trace.peak_bytes[0]),
        processes=step.strategy.colocation.processes,
    )


def memory_use(
    step: ExecutedStep, peak: PeakMemory, tiers: Sequence[TierUse], *, memory_of: str | None = None
) -> MemoryUse:
    """Return the figures of the result: what the driver would count, against the capacity.

    Args:
        memory_of: Ranks whose tensors are listed; the fullest if None.

    Raises:
        UnknownNameError: No ranks are called that.
    """
    device_bytes = peak.process * peak.processes
    memory = MemoryUse(
        peak_bytes=device_bytes,
        capacity_bytes=peak.capacity,
        fits=device_bytes <= peak.capacity,
        by_category={name: size * peak.processes for name, size in peak.by_category.items()},
    )
    memory = with_spill(memory, step.spilled, tiers)
    if not step.detail:
        return memory
    return with_live_tensors(
        memory,
        step.trace,
        step.compilation.ledger,
        fullest=peak.rank_class,
        allocator=step.setting.software.allocator,
        overhead_bytes=peak.process - peak.reserved,
        asked=memory_of,
    )


def _at_peak(trace: Trace, rank_class: int) -> dict[str, float]:
    """Return what is held on `rank_class` when its memory peaks, by category. [B]"""
    graph = trace.graph
    parts = dict(
        zip(graph.category_names, graph.static_by_category[rank_class].tolist(), strict=True)
    )
    moment = moment_of_start(trace, int(trace.peak_task[rank_class]))
    mine = tasks_of(trace, rank_class)
    started, ended = mine[moment.started[mine]], mine[moment.ended[mine]]
    for index, name in enumerate(graph.category_names):
        taken = graph.alloc_bytes[started[graph.memory_category[started] == index]].sum()
        given = graph.free_bytes[ended[graph.memory_category[ended] == index]].sum()
        parts[name] = parts.get(name, 0.0) + float(taken - given)
    if not parts.get("kv_cache"):  # only generation has one
        parts.pop("kv_cache", None)
    return parts
