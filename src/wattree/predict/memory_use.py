"""Peak memory by category, with what the framework adds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.cost import Calibration
from wattree.hardware import Cluster, Device
from wattree.predict.breakdown import tasks_of
from wattree.trace import MemoryUse, Trace

__all__ = [
    "PeakMemory",
    "class_peak",
    "memory_use",
    "peak_memory",
    "process_bytes",
    "reserved_bytes",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """Peak of the fullest rank as three tools would report it. [B]

    Attributes:
        rank_class: The fullest class: of the least room beside its peak, as a share of its device.
        capacity: Of its device.
        tensors: Live tensors as the executor counts them.
        allocated: Live tensors (`torch.cuda.max_memory_allocated`).
        reserved: What the caching allocator holds (`max_memory_reserved`).
        process: What the driver counts (`nvidia-smi`): with context and communicators.
        by_category: Parts of `process`.
    """

    rank_class: int
    capacity: float
    tensors: float
    allocated: float
    reserved: float
    process: float
    by_category: dict[str, float]


def peak_memory(
    trace: Trace, calibration: Calibration, cluster: Cluster, class_pools: Integers
) -> PeakMemory:
    """Return the peak of the fullest rank.

    Args:
        trace: What was played.
        calibration: What frameworks add.
        cluster: On what.
        class_pools: Pool of each rank class.
    """
    shares = np.zeros(len(trace.peak_bytes))
    for number, pool in enumerate(cluster.pools):
        mine, device = class_pools == number, pool.node.device
        process = process_bytes(trace.peak_bytes[mine], calibration, device)
        shares[mine] = process / device.memory_bytes
    return class_peak(trace, calibration, cluster, class_pools, int(np.argmax(shares)))


def class_peak(
    trace: Trace,
    calibration: Calibration,
    cluster: Cluster,
    class_pools: Integers,
    rank_class: int,
) -> PeakMemory:
    """Return the peak of the ranks of a class; arguments as for `peak_memory`."""
    device = cluster.pools[class_pools[rank_class]].node.device
    parts = _at_peak(trace, rank_class)
    tensors = float(sum(parts.values()))
    allocated = tensors + calibration.general("memory_allocated_bytes")
    reserved = float(reserved_bytes(np.array(tensors), calibration))
    process = float(process_bytes(np.array(tensors), calibration, device))
    parts["overhead"] = parts.get("overhead", 0.0) + process - tensors
    return PeakMemory(
        rank_class=rank_class,
        capacity=device.memory_bytes,
        tensors=tensors,
        allocated=allocated,
        reserved=reserved,
        process=process,
        by_category=parts,
    )


def reserved_bytes(tensor_bytes: Floats, calibration: Calibration) -> Floats:
    """Return what the caching allocator holds for a peak of live tensors. [B]"""
    kept = tensor_bytes * (1 + calibration.general("memory_fragmentation"))
    return np.asarray(kept + calibration.general("memory_reserved_bytes"))


def process_bytes(tensor_bytes: Floats, calibration: Calibration, device: Device) -> Floats:
    """Return what the driver counts for a peak of live tensors. [B]"""
    context = calibration.device(device, "memory_context_bytes")
    return np.asarray(reserved_bytes(tensor_bytes, calibration) + context)


def memory_use(peak: PeakMemory) -> MemoryUse:
    """Return the figures of the result: what the driver would count, against the capacity."""
    return MemoryUse(
        peak_bytes=peak.process,
        capacity_bytes=peak.capacity,
        fits=peak.process <= peak.capacity,
        by_category=peak.by_category,
    )


def _at_peak(trace: Trace, rank_class: int) -> dict[str, float]:
    """Return what is held on `rank_class` when its memory peaks, by category. [B]"""
    graph = trace.graph
    parts = dict(
        zip(graph.category_names, graph.resident_by_category[rank_class].tolist(), strict=True)
    )
    at = int(trace.peak_task[rank_class])
    if at < 0:
        return parts
    mine = tasks_of(trace, rank_class)
    moment = trace.start_s[at]
    started = mine[trace.start_s[mine] <= moment]
    ended = mine[trace.end_s[mine] <= moment]
    for index, name in enumerate(graph.category_names):
        taken = graph.alloc_bytes[started[graph.memory_category[started] == index]].sum()
        given = graph.free_bytes[ended[graph.memory_category[ended] == index]].sum()
        parts[name] = parts.get(name, 0.0) + float(taken - given)
    # Tasks that start at the same instant after the peak task are not part of the peak.
    surplus = sum(parts.values()) - float(trace.peak_bytes[rank_class])
    parts["activations"] -= surplus
    return parts
