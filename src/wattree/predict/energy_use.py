"""Energy, power, money and carbon of a played step: a first static-plus-dynamic model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.energy import dynamic_energy_j, rated_dynamic_w
from wattree.graph import StageLabel, StreamKind, TaskKind
from wattree.hardware import Cluster, Precision
from wattree.predict.breakdown import membership_class, tasks_by_class, time_parts
from wattree.trace import EnergyUse, Trace

__all__ = ["StepEnergy", "device_energy_j", "standing_w", "step_energy"]

Floats = NDArray[np.float64]

_BINS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnergy:
    """Energy of one step of the job's nodes.

    Attributes:
        use: By stage, with PUE. [J]
        average_w, peak_w: Of the job's devices and nodes, before PUE. [W]
        curve: Power over the step: (time, power of the job) pairs. [s, W]
    """

    use: EnergyUse
    average_w: float
    peak_w: float
    curve: tuple[tuple[float, float], ...]


def step_energy(
    trace: Trace,
    cluster: Cluster,
    precision: Precision,
    ranks: int,
    *,
    nodes: float | None = None,
) -> StepEnergy:
    """Return the energy of a step. `nodes` are those that the job pays for, if not all it needs.

    Dynamic energy belongs to the stage of its task. Static energy (devices at rest, hosts,
    switches) belongs to the stage that is exposed at that moment: communication and input where
    they delay compute, computing otherwise, bubbles included.
    """
    dynamic, owner, task = _dynamic(trace, cluster, precision)
    if nodes is None:
        nodes = -(-ranks // cluster.node.devices)
    graph = trace.graph
    step_s = trace.makespan_s
    multiplicity = graph.class_ranks[owner]
    by_stage = np.bincount(graph.stage[task], weights=dynamic * multiplicity, minlength=3)
    at_rest_w = standing_w(cluster, nodes) * nodes
    limit_w, idle_w = _limits_w(cluster)
    asked = _curve(trace, dynamic * multiplicity, task, at_rest_w)
    curve = _capped(asked, at_rest_w + ranks * rated_dynamic_w(limit_w, idle_w))
    # Communication behind compute cannot draw what the compute leaves nothing of.
    by_stage[StageLabel.COMMUNICATING] -= _mean_excess_w(asked, curve) * step_s
    static_j = at_rest_w * step_s
    exposed = _exposed_shares(trace)
    stages = np.maximum(by_stage + static_j * exposed, 0.0)  # rounding of an empty stage
    pue = cluster.site.pue
    names = ("materials", "computing", "communicating")
    total_j = float(stages.sum())
    return StepEnergy(
        use=EnergyUse(
            total=total_j * pue,
            by_stage={name: float(stages[index]) * pue for index, name in enumerate(names)},
            static=static_j * pue,
            dynamic=float(by_stage.sum()) * pue,
        ),
        average_w=total_j / step_s if step_s > 0 else 0.0,
        peak_w=max((watts for _, watts in curve), default=0.0),
        curve=curve,
    )


def standing_w(cluster: Cluster, nodes: float) -> float:
    """Return what one of `nodes` nodes draws whatever runs: devices at rest, host, switches. [W]"""
    node = cluster.node
    watts = node.devices * node.device.idle_w + node.host.busy_w
    return watts + (node.nics * cluster.fabric.switch_w_per_nic if nodes > 1 else 0.0)


def device_energy_j(
    cluster: Cluster,
    precision: Precision,
    *,
    flop: Floats,
    traffic_bytes: Floats,
    busy_s: Floats,
    communicates: NDArray[np.bool_],
) -> Floats:
    """Return the energy above rest of tasks on one device, at the job's power limit. [J]

    Arguments as for `energy.dynamic_energy_j`.
    """
    device = cluster.node.device
    limit_w, idle_w = _limits_w(cluster)
    return dynamic_energy_j(
        flop=flop,
        traffic_bytes=traffic_bytes,
        busy_s=busy_s,
        communicates=communicates,
        peak_flop_per_s=device.matrix_peak_flop_per_s(precision),
        memory_bytes_per_s=device.memory_bandwidth_bytes_per_s,
        tdp_w=limit_w,
        idle_w=idle_w,
    )


def _limits_w(cluster: Cluster) -> tuple[float, float]:
    """Return the most and the least that a device draws under the job's power limit. [W]"""
    device = cluster.node.device
    limit = min(cluster.power_limit_w or device.tdp_w, device.tdp_w)
    return limit, min(device.idle_w, limit * 0.9)


def _dynamic(
    trace: Trace, cluster: Cluster, precision: Precision
) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Return dynamic energy, class and task of every (task, class) pair, for one rank each."""
    graph = trace.graph
    task, owner = membership_class(trace)
    # A copy engine moves bytes of device memory; no core spins for it as in a collective.
    copies = graph.stream_kind[graph.stream_ids] == StreamKind.COPY
    energy = device_energy_j(
        cluster,
        precision,
        flop=graph.flop[task],
        traffic_bytes=graph.memory_traffic_bytes[task],
        busy_s=(trace.end_s - trace.start_s)[task],
        communicates=np.isin(graph.kind[task], (TaskKind.COLLECTIVE, TaskKind.TRANSFER)) & ~copies,
    )
    return energy, owner, task


def _exposed_shares(trace: Trace) -> Floats:
    """Return the share of the step in which each stage is exposed, averaged over ranks."""
    shares = np.zeros(3)
    ranks = trace.graph.class_ranks
    tasks = tasks_by_class(trace, len(ranks[:_BINS]))
    for rank_class, (count, mine) in enumerate(zip(ranks[:_BINS], tasks, strict=True)):
        parts = time_parts(trace, rank_class, mine)
        shares[StageLabel.MATERIALS] += count * parts.exposed_materials
        shares[StageLabel.COMMUNICATING] += count * parts.exposed_communication
    shares /= max(trace.makespan_s, 1e-30) * ranks[:_BINS].sum()
    shares[StageLabel.COMPUTING] = 1.0 - shares.sum()
    return shares


def _curve(
    trace: Trace, energy: Floats, task: NDArray[np.int64], standing_w: float
) -> tuple[tuple[float, float], ...]:
    """Return power over time in equal bins; energy spreads evenly over each task."""
    step_s = trace.makespan_s
    if step_s <= 0:
        return ()
    width = step_s / _BINS
    start, end = trace.start_s[task], trace.end_s[task]
    # Cumulative energy at bin edges: a ramp per task, summed through its two corners.
    length = np.maximum(end - start, 1e-15)
    slope = energy / length
    edges = np.arange(_BINS + 1) * width
    corners = np.concatenate([start, start + length])
    change = np.concatenate([slope, -slope])
    order = np.argsort(corners, kind="stable")
    corners, change = corners[order], change[order]
    power_after = np.cumsum(change)
    reached = np.concatenate(([0.0], np.cumsum(power_after[:-1] * np.diff(corners))))
    at = np.interp(edges, corners, reached)
    watts = np.diff(at) / width + standing_w
    return tuple((float(t), float(w)) for t, w in zip(edges[:-1], watts, strict=True))


def _capped(
    curve: tuple[tuple[float, float], ...], most_w: float
) -> tuple[tuple[float, float], ...]:
    """Return a power curve cut off at what all devices may draw together."""
    return tuple((time_s, min(watts, most_w)) for time_s, watts in curve)


def _mean_excess_w(
    asked: tuple[tuple[float, float], ...], granted: tuple[tuple[float, float], ...]
) -> float:
    """Return by how much one power curve lies above another, on average over the step. [W]"""
    above = [a - b for (_, a), (_, b) in zip(asked, granted, strict=True)]
    return sum(above) / len(above) if above else 0.0
