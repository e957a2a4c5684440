"""Energy and power of an executed step: static power over time, plus dynamic energy of tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.accounts.breakdown import starved_span
from wattree.accounts.energy_ledger import Drawn, account, standing_of
from wattree.accounts.executed import ExecutedStep
from wattree.accounts.input_pipeline import core_times_s
from wattree.accounts.shares import waiting_share
from wattree.arrays import Floats, Integers
from wattree.energy import DevicePower, dynamic_energy_j, loading_energy_j
from wattree.graph import StageLabel, StreamKind, TaskKind
from wattree.hardware import Cluster
from wattree.sim.drawn import BINS, Occupancy
from wattree.sim.occupancy import class_column, occupancy
from wattree.sim.sweep import CLASSES
from wattree.trace import EnergyUse, PowerOverTime, Trace

Curve = tuple[tuple[float, float], ...]

#: Tasks that are computed at once: arrays of that length stay in the processor's cache.
_CHUNK = 1 << 15
#: Streams whose tasks move bytes, or occupy a host, while the cores do other things.
_MOVING_STREAMS = (StreamKind.COPY, StreamKind.STORAGE, StreamKind.HOST)
#: Rank classes whose power a timeline shows: no one scrolls through more tracks.
_MOST_CURVES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnergy:
    """Energy of one step of the job's nodes.

    Attributes:
        use: By stage, with PUE. [J]
        average_w, peak_w: Of the job's devices and nodes, before PUE. [W]
        curve: Power over the step: (time, power of the job) pairs. [s, W]
        by_pool: Of `use.total`, the devices and nodes of each pool. [J]
        component_w: Power over the step by component, at the times of `curve`. [W]
        device_w: Power of one device of each rank class, likewise, `(C, len(curve))`. [W]
    """

    use: EnergyUse
    average_w: float
    peak_w: float
    curve: Curve
    by_pool: tuple[float, ...]
    component_w: Mapping[str, Floats]
    device_w: Floats

    @property
    def over_time(self) -> PowerOverTime | None:
        """Power over the step by component; None of a step that takes no time."""
        if len(self.curve) < 2:
            return None
        parts = {name: tuple(watts.tolist()) for name, watts in self.component_w.items()}
        return PowerOverTime(width_s=self.curve[1][0], by_component=parts)

    def curves(self, class_names: Sequence[str]) -> dict[str, Curve]:
        """Return power over the step by name: a device of each class, nodes, all. [s, W]"""
        times_s = [time_s for time_s, _ in self.curve]
        found = {
            name: tuple(zip(times_s, watts.tolist(), strict=True))
            for name, watts in zip(class_names[:_MOST_CURVES], self.device_w, strict=False)
        }
        nodes = [w for name, w in self.component_w.items() if not name.startswith("device")]
        around = sum(nodes, np.zeros(len(times_s)))
        found["hosts and switches"] = tuple(zip(times_s, around.tolist(), strict=True))
        found["cluster"] = self.curve
        return found


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

    Dynamic energy belongs to the stage and class of its task. Static energy (devices at rest,
    hosts, switches) belongs to what is exposed on a rank at that moment: communication and input
    where they delay compute, computing otherwise, bubbles included.

    Args:
        powers: What the devices of each pool draw.
        class_pools: Pool of each rank class; may be left out where there is one.
        nodes: That the job pays for, by pool, if not all it needs.
        core_s: Core time of loading one micro-batch for one rank, by pool; empty where nothing is
            known of it. [s]
    """
    if class_pools is None:
        class_pools = np.full(len(trace.graph.class_ranks), cluster.pools.index(cluster.pool))
    paid = cluster.paid_nodes(cluster.pool_nodes(ranks)) if nodes is None else nodes
    step_s, graph = trace.makespan_s, trace.graph
    loading_j, loading_w = _loading(trace, class_pools, core_s)
    found = account(
        cluster,
        Drawn(
            ranks=graph.class_ranks,
            pools=class_pools,
            names=graph.class_names,
            devices=np.array(
                [n * p.node.devices for n, p in zip(paid, cluster.pools, strict=True)]
            ),
            step_s=step_s,
            occupancy=_occupied(trace, powers, class_pools),
            loading_j=loading_j,
            loading_w=loading_w,
        ),
        _standing(cluster, paid),
    )
    use = found.use
    component_w = found.power_w() if step_s > 0 else {}
    watts = sum(component_w.values(), np.zeros(BINS if step_s > 0 else 0))
    times_s = np.arange(len(watts)) * (step_s / BINS)
    return StepEnergy(
        use=use,
        average_w=use.total / cluster.site.pue / step_s if step_s > 0 else 0.0,
        peak_w=float(watts.max(initial=0.0)),
        curve=tuple(zip(times_s.tolist(), watts.tolist(), strict=True)),
        by_pool=tuple(found.by_pool.tolist()),
        component_w=component_w,
        device_w=found.device_w() if step_s > 0 else np.zeros((len(graph.class_ranks), 0)),
    )


def powers_of(step: ExecutedStep) -> tuple[DevicePower, ...]:
    """Return what the devices of each pool draw, which wait for their hosts at times."""
    waits = waiting_share(step.compilation)
    return tuple(power.waiting(waits) for power in step.setting.powers)


def energy_of(step: ExecutedStep, powers: Sequence[DevicePower]) -> StepEnergy:
    """Return the energy of an executed step, as `step_energy` has it; arguments as there."""
    return step_energy(
        step.trace,
        step.cluster,
        powers,
        step.ranks,
        class_pools=step.compilation.class_pools,
        nodes=step.nodes,
        core_s=core_times_s(step.compilation.loading),
    )


def standing_w(cluster: Cluster, nodes: Sequence[float]) -> tuple[float, ...]:
    """Return the static power of each pool's nodes: idle devices, host, switches. [W]

    Args:
        nodes: That the job pays for, by pool.
    """
    parts = zip(_standing(cluster, nodes), nodes, strict=True)
    return tuple(sum(watts.values()) * used for watts, used in parts)


def _standing(cluster: Cluster, nodes: Sequence[float]) -> list[Mapping[str, float]]:
    networked = sum(nodes) > cluster.fabric.cabled_nodes
    return [standing_of(cluster, pool, networked=networked) for pool in cluster.pools]


def _occupied(trace: Trace, powers: Sequence[DevicePower], class_pools: Integers) -> Occupancy:
    """Return the activity of one rank of each class, and the power granted by its device."""
    most_w = np.array([power.most_dynamic_w for power in powers])
    spin_w = np.array([power.spin_w for power in powers])
    found: Occupancy | None = None
    for number, power in enumerate(powers):
        own = np.flatnonzero(class_pools == number)
        if not len(own):
            continue
        seen = occupancy(
            trace,
            _task_energy_j(trace, power),
            most_w[class_pools],
            starved=_starved(trace),
            spin_w=spin_w[class_pools],
            classes=own,
        )
        found = seen if found is None else Occupancy(*map(np.add, found, seen))
    assert found is not None, "a job has a rank"
    return found


def _starved(trace: Trace) -> tuple[float, float]:
    """Return when the whole job waits for input of later steps; empty if never. [s]"""
    found = starved_span(trace)
    return (float(found[0, 0]), float(found[0, 1])) if len(found) else (0.0, 0.0)


def _task_energy_j(trace: Trace, power: DevicePower) -> Floats:
    """Return the energy above rest that each task needs on one device. [J]"""
    graph = trace.graph
    energy = np.empty(graph.tasks)
    # A copy engine moves bytes of device memory; no core spins for it as in a collective.
    is_copy = np.isin(graph.stream_kind, _MOVING_STREAMS)
    for part in _chunks(graph.tasks):
        first_stream = graph.stream_ids[graph.stream_offsets[:-1][part]]
        kind = graph.kind[part]
        moves = (kind == TaskKind.COLLECTIVE) | (kind == TaskKind.TRANSFER)
        copies = is_copy[first_stream]
        # Decoding on the device keeps a few units busy, as a collective does.
        decodes = (kind == TaskKind.HOST) & (graph.stream_kind[first_stream] == StreamKind.COPY)
        energy[part] = dynamic_energy_j(
            power,
            flop=graph.flop[part],
            traffic_bytes=graph.memory_traffic_bytes[part],
            busy_s=trace.end_s[part] - trace.start_s[part],
            communicates=(moves & ~copies) | decodes,
            copies=copies,
        )
    return energy


def _chunks(tasks: int) -> Iterator[slice]:
    return (slice(first, min(first + _CHUNK, tasks)) for first in range(0, tasks, _CHUNK))


def _loading(
    trace: Trace, class_pools: Integers, core_s: Sequence[float]
) -> tuple[Floats, Floats] | tuple[None, None]:
    """Return what hosts and storage draw above rest for tasks that load data, all ranks together.

    By class and cell, `(C, cells, 2)` [J], and over time, `(BINS, 2)` [W]; None where nothing is
    known of loading: then one task of the host stands for all of it.
    """
    graph = trace.graph
    chosen = np.flatnonzero(graph.stage == StageLabel.MATERIALS)
    if not core_s or not len(chosen):
        return None, None
    counts = np.diff(graph.stream_offsets)[chosen]
    task = np.repeat(chosen, counts)
    within = np.arange(len(task)) - np.repeat(np.cumsum(counts) - counts, counts)
    streams = graph.stream_ids[graph.stream_offsets[:-1][task] + within]
    owner, kind = graph.stream_class[streams], graph.stream_kind[streams]
    moved, none = graph.link_traffic_bytes[task], np.zeros(len(task))
    works = kind == StreamKind.HOST
    ranks = graph.class_ranks[owner]
    hosts = loading_energy_j(
        core_s=np.where(works, np.array(core_s)[class_pools[owner]], 0.0),
        read_bytes=none,
        copied_bytes=np.where(kind == StreamKind.COPY, moved, 0.0),
    )
    storage = loading_energy_j(
        core_s=none,
        read_bytes=np.where(kind == StreamKind.STORAGE, moved, 0.0),
        copied_bytes=none,
    )
    cell = graph.stage[task].astype(np.int64) * CLASSES + class_column(graph)[task]
    energy = np.zeros((len(graph.class_ranks), len(StageLabel) * CLASSES, 2))
    power = np.zeros((BINS, 2))
    for column, drawn in enumerate((hosts * ranks, storage * ranks)):
        np.add.at(energy[:, :, column], (owner, cell), drawn)
        power[:, column] = _spread(trace, drawn, task)
    return energy, power


def _spread(trace: Trace, energy: Floats, task: Integers) -> Floats:
    """Return power over time in equal bins; energy spreads evenly over each task. [W]"""
    width = trace.makespan_s / BINS
    if width <= 0 or not len(task):
        return np.zeros(BINS)
    start, end = trace.start_s[task], trace.end_s[task]
    # Cumulative energy at bin edges: a ramp per task, summed through its two corners.
    length = np.maximum(end - start, 1e-15)
    slope = energy / length
    edges = np.arange(BINS + 1) * width
    corners = np.concatenate([start, start + length])
    change = np.concatenate([slope, -slope])
    order = np.argsort(corners, kind="stable")
    corners, change = corners[order], change[order]
    power_after = np.cumsum(change)
    reached = np.concatenate(([0.0], np.cumsum(power_after[:-1] * np.diff(corners))))
    return np.asarray(np.diff(np.interp(edges, corners, reached)) / width)
