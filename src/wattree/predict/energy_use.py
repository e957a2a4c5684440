"""Energy, power, money and carbon of a played step: a first static-plus-dynamic model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.energy import DevicePower, dynamic_energy_j, loading_energy_j
from wattree.graph import Phase, StageLabel, StreamKind, TaskKind
from wattree.hardware import Cluster
from wattree.predict.breakdown import (
    membership_class,
    starved_span,
    tasks_by_class,
    time_parts,
)
from wattree.trace import EnergyUse, Trace

__all__ = ["StepEnergy", "standing_w", "step_energy"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Curve = tuple[tuple[float, float], ...]

_BINS = 256
#: Streams whose tasks move bytes, or occupy a host, while the cores do other things.
_MOVING_STREAMS = (StreamKind.COPY, StreamKind.STORAGE, StreamKind.HOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnergy:
    """Energy of one step of the job's nodes.

    Attributes:
        use: By stage, with PUE. [J]
        average_w, peak_w: Of the job's devices and nodes, before PUE. [W]
        curve: Power over the step: (time, power of the job) pairs. [s, W]
        by_pool: Of `use.total`, the devices and nodes of each pool. [J]
    """

    use: EnergyUse
    average_w: float
    peak_w: float
    curve: Curve
    by_pool: tuple[float, ...]


def step_energy(
    trace: Trace,
    cluster: Cluster,
    powers: Sequence[DevicePower],
    ranks: int,
    *,
    class_pools: Integers | None = None,
    nodes: Sequence[float] | None = None,
    core_s: Sequence[float] = (),
) -> StepEnergy:
    """Return the energy of a step.

    Dynamic energy belongs to the stage of its task. Static energy (devices at rest, hosts,
    switches) belongs to the stage that is exposed at that moment: communication and input where
    they delay compute, computing otherwise, bubbles included.

    Args:
        trace: What was played.
        cluster: On what.
        powers: What the devices of each pool draw.
        ranks: Of the job.
        class_pools: Pool of each rank class; may be left out where there is one.
        nodes: That the job pays for, by pool, if not all it needs.
        core_s: Core time of loading one micro-batch for one rank, by pool; empty where nothing is
            known of it. [s]
    """
    if class_pools is None:
        only = cluster.pools.index(cluster.pool)
        class_pools = np.full(len(trace.graph.class_ranks), only)
    own, owner, task = _dynamic(trace, powers, class_pools)
    graph = trace.graph
    step_s = trace.makespan_s
    dynamic = own * graph.class_ranks[owner]
    loading = _loading(trace, task, class_pools[owner], core_s) * graph.class_ranks[owner]
    by_stage = np.bincount(graph.stage[task], weights=dynamic + loading, minlength=3)
    resting_w = standing_w(cluster, cluster.pool_nodes(ranks) if nodes is None else nodes)
    at_rest_w = sum(resting_w)
    pool = class_pools[owner]
    pools = len(cluster.pools)
    dynamic_j = np.bincount(pool, weights=dynamic + loading, minlength=pools)
    moves = graph.stage[task] == StageLabel.COMMUNICATING
    moving_j = np.bincount(pool[moves], weights=dynamic[moves], minlength=pools)
    curves = []
    for number, kind in enumerate(_kinds(powers)):
        rest_w = at_rest_w if number == 0 else 0.0
        mine = np.isin(pool, kind) if len(kind) < pools else slice(None)
        asked = _curve(trace, dynamic[mine], task[mine], rest_w)
        granted = _capped(asked, rest_w + _most_dynamic_w(cluster, powers, kind, ranks))
        curves.append(granted)
        # Communication behind compute cannot draw what the compute leaves nothing of.
        excess_j = _mean_excess_w(asked, granted) * step_s
        by_stage[StageLabel.COMMUNICATING] -= excess_j
        dynamic_j[kind] -= excess_j * moving_j[kind] / max(moving_j[kind].sum(), 1e-30)
    if loading.any():  # hosts and storage draw it, under no limit of the devices
        curves.append(_curve(trace, loading, task, 0.0))
    static_j = at_rest_w * step_s
    exposed = _exposed_shares(trace, _weights(cluster, ranks, resting_w)[class_pools])
    stages = np.maximum(by_stage + static_j * exposed, 0.0)  # rounding of an empty stage
    curve = _added(curves)
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
        by_pool=tuple(((dynamic_j + np.array(resting_w) * step_s) * pue).tolist()),
    )


def standing_w(cluster: Cluster, nodes: Sequence[float]) -> tuple[float, ...]:
    """Return what the nodes of each pool draw whatever runs: devices at rest, host, switches. [W]

    Args:
        cluster: Of the job.
        nodes: That the job pays for, by pool.
    """
    networked = sum(nodes) > 1
    found = []
    for pool, used in zip(cluster.pools, nodes, strict=True):
        node = pool.node
        watts = node.devices * node.device.idle_w + node.host.busy_w
        watts += node.nics * cluster.fabric.switch_w_per_nic if networked else 0.0
        found.append(watts * used)
    return tuple(found)


def _kinds(powers: Sequence[DevicePower]) -> list[list[int]]:
    """Return the pools whose devices are alike and may draw as much, together."""
    kinds: dict[DevicePower, list[int]] = {}
    for number, power in enumerate(powers):
        kinds.setdefault(power, []).append(number)
    return list(kinds.values())


def _most_dynamic_w(
    cluster: Cluster, powers: Sequence[DevicePower], pools: list[int], ranks: int
) -> float:
    """Return what the devices of alike pools may draw above rest together. [W]"""
    devices = cluster.pool_devices(ranks)
    return sum(devices[number] * powers[number].most_dynamic_w for number in pools)


def _weights(cluster: Cluster, ranks: int, resting_w: tuple[float, ...]) -> Floats:
    """Return how much one rank of each pool draws at rest, over that of the first."""
    if not cluster.is_mixed:
        return np.ones(1)
    devices = np.maximum(cluster.pool_devices(ranks), 1)
    per_rank = np.array(resting_w) / devices
    return np.asarray(per_rank / per_rank[0])


def _dynamic(
    trace: Trace, powers: Sequence[DevicePower], class_pools: Integers
) -> tuple[Floats, Integers, Integers]:
    """Return dynamic energy, class and task of every (task, class) pair, for one rank each."""
    graph = trace.graph
    task, owner = membership_class(trace)
    busy_s = trace.end_s - trace.start_s
    # A copy engine moves bytes of device memory; no core spins for it as in a collective.
    copies = np.isin(graph.stream_kind[graph.stream_ids], _MOVING_STREAMS)
    moves = np.isin(graph.kind[task], (TaskKind.COLLECTIVE, TaskKind.TRANSFER)) & ~copies
    energy = np.zeros(len(task))
    for number, power in enumerate(powers):
        mine = class_pools[owner] == number if len(powers) > 1 else slice(None)
        energy[mine] = dynamic_energy_j(
            power,
            flop=graph.flop[task[mine]],
            traffic_bytes=graph.memory_traffic_bytes[task[mine]],
            busy_s=busy_s[task[mine]],
            communicates=moves[mine],
            copies=copies[mine],
        )
    return energy, owner, task


def _loading(trace: Trace, task: Integers, pool: Integers, core_s: Sequence[float]) -> Floats:
    """Return what hosts and storage draw above rest for tasks that load data, for one rank. [J]"""
    graph = trace.graph
    # Who says nothing of loading has one task of the host for all of it.
    if not core_s or not np.isin(graph.stage[task], StageLabel.MATERIALS).any():
        return np.zeros(len(task))
    stream = graph.stream_kind[graph.stream_ids]
    materials = graph.stage[task] == StageLabel.MATERIALS
    moved = np.where(materials, graph.link_traffic_bytes[task], 0.0)
    works = materials & (graph.phase[task] == Phase.PREFETCH) & (stream == StreamKind.HOST)
    return loading_energy_j(
        core_s=np.where(works, np.array(core_s)[pool], 0.0),
        read_bytes=np.where(stream == StreamKind.STORAGE, moved, 0.0),
        copied_bytes=np.where(stream == StreamKind.COPY, moved, 0.0),
    )


def _exposed_shares(trace: Trace, weights: Floats) -> Floats:
    """Return the share of the step in which each stage is exposed, averaged over ranks.

    Args:
        trace: What was played.
        weights: What a rank of each class counts.
    """
    shares = np.zeros(3)
    ranks = trace.graph.class_ranks * weights
    tasks = tasks_by_class(trace, len(ranks[:_BINS]))
    starved = starved_span(trace)
    for rank_class, (count, mine) in enumerate(zip(ranks[:_BINS], tasks, strict=True)):
        parts = time_parts(trace, rank_class, mine, starved=starved)
        shares[StageLabel.MATERIALS] += count * parts.exposed_materials
        shares[StageLabel.COMMUNICATING] += count * parts.exposed_communication
    shares /= max(trace.makespan_s, 1e-30) * ranks[:_BINS].sum()
    shares[StageLabel.COMPUTING] = 1.0 - shares.sum()
    return shares


def _curve(trace: Trace, energy: Floats, task: NDArray[np.int64], standing_w: float) -> Curve:
    """Return power over time in equal bins; energy spreads evenly over each task."""
    step_s = trace.makespan_s
    if step_s <= 0:
        return ()
    width = step_s / _BINS
    if not len(task):
        return tuple((number * width, standing_w) for number in range(_BINS))
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


def _added(curves: list[Curve]) -> Curve:
    """Return power curves over the same times as one."""
    if len(curves) == 1:
        return curves[0]
    return tuple(
        (points[0][0], sum(watts for _, watts in points)) for points in zip(*curves, strict=True)
    )


def _capped(curve: Curve, most_w: float) -> Curve:
    """Return a power curve cut off at what all devices may draw together."""
    return tuple((time_s, min(watts, most_w)) for time_s, watts in curve)


def _mean_excess_w(asked: Curve, granted: Curve) -> float:
    """Return by how much one power curve lies above another, on average over the step. [W]"""
    above = [a - b for (_, a), (_, b) in zip(asked, granted, strict=True)]
    return sum(above) / len(above) if above else 0.0
