"""Pass 11: stage programs and rank classes → the execution graph's arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.stage import StageProgram
from wattree.compiler.tasks import CATEGORIES, STREAMS, Stream
from wattree.graph import ExecutionGraph, StreamKind, TaskKind

__all__ = ["PortRates", "StageClasses", "TransferCosts", "execution_graph"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_STREAM_KINDS = {
    Stream.COMPUTE: StreamKind.COMPUTE,
    Stream.HOST: StreamKind.HOST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferCosts:
    """Costs of one stage's transfers by class, for one direction. Shapes `(K,)`."""

    latency_s: Floats
    work_s: Floats
    scale_up_bytes: Floats
    adapter_bytes: Floats
    wire_bytes: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class StageClasses:
    """The rank classes of one stage.

    Attributes:
        ranks: Ranks in each class, `(K,)`.
        slowdown: Factor on compute time, `(K,)`.
        orbits: Axes number → the orbit of each class, `(K,)`: classes whose groups are shared.
        next_class, previous_class: Class of the peer in the neighbouring stage, `(K,)`.
        to_next, to_previous: Transfer costs.
        resident: Bytes by class and category, `(K, len(CATEGORIES))`.
        name: Of the stage, for people.
        mirror_class: Class of the peer in the stage that holds the same chunks, `(K,)`, if any.
        to_mirror_per_byte: Costs of sending it one byte.
    """

    ranks: Integers
    slowdown: Floats
    orbits: Mapping[int, Integers]
    next_class: Integers
    previous_class: Integers
    to_next: TransferCosts
    to_previous: TransferCosts
    resident: Floats
    name: str
    mirror_class: Integers | None = None
    to_mirror_per_byte: TransferCosts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRates:
    """Bandwidth of the two ports of a device. [B/s]"""

    scale_up_bytes_per_s: float
    adapter_bytes_per_s: float


class _Expanded:
    """One stage's tasks, one instance per class or orbit, with global numbers."""

    def __init__(self, program: StageProgram, classes: StageClasses, first: int) -> None:
        self.program, self.classes = program, classes
        tasks = program.tasks
        self.count = len(classes.ranks)
        axes = tasks["axes"].astype(np.int64)
        copies = np.full(len(tasks), self.count, dtype=np.int64)
        for number, orbit in classes.orbits.items():
            copies[axes == number] = int(orbit.max()) + 1
        offsets = first + np.concatenate(([0], np.cumsum(copies)))
        self.offsets, self.copies = offsets[:-1], copies
        self.first, self.last = first, int(offsets[-1])
        self.axes = axes
        self.instance_of = self.offsets[:, None] + self._copy_numbers()  # (T, K)

    def _copy_numbers(self) -> Integers:
        numbers = np.broadcast_to(np.arange(self.count), (len(self.copies), self.count))
        if self.count == 1:
            return numbers
        numbers = numbers.copy()
        for number, orbit in self.classes.orbits.items():
            numbers[self.axes == number] = orbit
        return numbers

    def fields(self) -> NDArray[np.void]:
        """Return the records of all instances, costs of each class filled in."""
        records = np.repeat(self.program.tasks, self.copies)
        owner = np.empty(len(records), dtype=np.int64)
        owner[(self.instance_of - self.first).ravel()] = np.tile(
            np.arange(self.count), len(self.copies)
        )
        compute = records["kind"] == TaskKind.COMPUTE
        records["work_s"][compute] *= self.classes.slowdown[owner[compute]]
        for stream, costs in (
            (Stream.SEND_NEXT, self.classes.to_next),
            (Stream.SEND_PREVIOUS, self.classes.to_previous),
        ):
            moved = records["stream"] == stream
            for name in TransferCosts.__dataclass_fields__:
                records[name][moved] = getattr(costs, name)[owner[moved]]
        if (mirror := self.classes.to_mirror_per_byte) is not None:
            moved = (records["kind"] == TaskKind.TRANSFER) & (records["stream"] == Stream.REDUCE)
            size, to = records["wire_bytes"][moved], owner[moved]
            records["latency_s"][moved] = mirror.latency_s[to]
            for name in ("work_s", "scale_up_bytes", "adapter_bytes"):
                records[name][moved] = size * getattr(mirror, name)[to]
        return records

    def edges(self) -> Integers:
        """Return the edges among instances, shape `(E, 2)`."""
        before, after = self.program.edges[:, 0], self.program.edges[:, 1]
        pairs = np.stack([self.instance_of[before], self.instance_of[after]], axis=-1)
        if self.count == 1:
            return pairs.reshape(-1, 2)
        shared = (self.copies[before] < self.count) & (self.copies[after] < self.count)
        merged = np.unique(pairs[shared].reshape(-1, 2), axis=0)
        return np.concatenate([pairs[~shared].reshape(-1, 2), merged])


def execution_graph(
    programs: Sequence[StageProgram],
    classes: Sequence[StageClasses],
    *,
    ports: PortRates,
    names: Sequence[str],
    compute_rate_while_communicating: float,
    communication_rate_while_computing: float,
) -> ExecutionGraph:
    """Return the arrays of the whole job.

    Args:
        programs: One per stage.
        classes: One per stage.
        ports: Bandwidth of a device's ports.
        names: Strings that tasks name by number.
        compute_rate_while_communicating, communication_rate_while_computing: Mutual slowdown.
    """
    expanded = []
    first = 0
    for program, stage_classes in zip(programs, classes, strict=True):
        expanded.append(_Expanded(program, stage_classes, first))
        first = expanded[-1].last
    records = np.concatenate([stage.fields() for stage in expanded])
    edges = np.concatenate([*(stage.edges() for stage in expanded), _transfers(expanded)])
    class_base = np.concatenate(([0], np.cumsum([stage.count for stage in expanded])))
    task, stream, owner = _memberships(expanded, class_base)
    successors, successor_offsets = _csr(edges[:, 0], edges[:, 1], len(records))
    stream_ids, stream_offsets = _csr(task, stream, len(records))
    flow_links, flow_rates, flow_offsets = _flows(records, task, owner)
    number = int(class_base[-1])
    return ExecutionGraph(
        kind=records["kind"].copy(),
        latency_s=records["latency_s"].copy(),
        work_s=records["work_s"].copy(),
        stream_offsets=stream_offsets,
        stream_ids=stream_ids,
        successor_offsets=successor_offsets,
        successors=successors,
        flow_offsets=flow_offsets,
        flow_links=flow_links,
        flow_bytes_per_s=flow_rates,
        overlaps=records["overlaps"].copy(),
        alloc_bytes=records["alloc_bytes"].copy(),
        free_bytes=records["free_bytes"].copy(),
        stream_class=np.repeat(np.arange(number), len(STREAMS)),
        stream_kind=np.tile(
            np.array(
                [_STREAM_KINDS.get(s, StreamKind.COMMUNICATION) for s in range(len(STREAMS))],
                dtype=np.int8,
            ),
            number,
        ),
        class_ranks=np.concatenate([stage.classes.ranks for stage in expanded]),
        class_names=_class_names(expanded),
        resident_bytes=np.concatenate([s.classes.resident.sum(axis=1) for s in expanded]),
        link_bandwidth_bytes_per_s=np.tile(
            [ports.scale_up_bytes_per_s, ports.adapter_bytes_per_s], number
        ).astype(np.float64),
        link_names=tuple(
            f"{name} {port}" for name in _class_names(expanded) for port in ("scale-up", "network")
        ),
        compute_rate_while_communicating=compute_rate_while_communicating,
        communication_rate_while_computing=communication_rate_while_computing,
        name_ids=records["name"].astype(np.int64),
        names=tuple(names),
        phase=records["phase"].copy(),
        stage=records["stage"].copy(),
        micro_batch=records["micro_batch"].astype(np.int64),
        flop=records["flop"].copy(),
        memory_traffic_bytes=records["traffic_bytes"].copy(),
        link_traffic_bytes=records["wire_bytes"].copy(),
        memory_category=records["category"].copy(),
        category_names=CATEGORIES,
        resident_by_category=np.concatenate([stage.classes.resident for stage in expanded]),
    )


def _class_names(expanded: Sequence[_Expanded]) -> tuple[str, ...]:
    names = []
    for stage in expanded:
        for index, ranks in enumerate(stage.classes.ranks):
            suffix = f".{index}" if stage.count > 1 else ""
            names.append(f"{stage.classes.name}{suffix} ({int(ranks)} ranks)")
    return tuple(names)


def _transfers(expanded: Sequence[_Expanded]) -> Integers:
    """Edges from each transfer to what waits for it in another stage."""
    pairs = [np.zeros((0, 2), np.int64)]
    for stage in expanded:
        by_target: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for send in stage.program.sends:
            for entry in expanded[send.stage].program.receives[send.received]:
                by_target.setdefault((send.stage, send.heading), []).append((send.task, entry))
        for (target, heading), found in by_target.items():
            sends, entries = np.array(found, dtype=np.int64).T
            sources = stage.instance_of[sends]
            sinks = expanded[target].instance_of[entries][:, _peers(stage.classes, heading)]
            pairs.append(np.stack([sources, sinks], axis=-1).reshape(-1, 2))
    return np.concatenate(pairs)


def _peers(classes: StageClasses, heading: int) -> Integers:
    """Return the class that each class sends to in the direction of `heading`."""
    if heading == 0:
        assert classes.mirror_class is not None
        return classes.mirror_class
    return classes.next_class if heading > 0 else classes.previous_class


def _memberships(
    expanded: Sequence[_Expanded], class_base: Integers
) -> tuple[Integers, Integers, Integers]:
    """Return (task instance, stream, class) of every membership."""
    tasks, streams, owners = [], [], []
    for base, stage in zip(class_base, expanded, strict=False):
        local = stage.program.tasks["stream"].astype(np.int64)
        owner = np.broadcast_to(base + np.arange(stage.count), stage.instance_of.shape)
        tasks.append(stage.instance_of.ravel())
        streams.append((owner * len(STREAMS) + local[:, None]).ravel())
        owners.append(owner.ravel())
    return np.concatenate(tasks), np.concatenate(streams), np.concatenate(owners)


def _csr(rows: Integers, values: Integers, count: int) -> tuple[Integers, Integers]:
    """Return values grouped by row, and the offsets of the rows."""
    if len(rows) and np.any(np.diff(rows) < 0):
        order = np.argsort(rows, kind="stable")
        rows, values = rows[order], values[order]
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
    return np.ascontiguousarray(values), offsets


def _flows(
    records: NDArray[np.void], task: Integers, owner: Integers
) -> tuple[Integers, Floats, Integers]:
    """Return links, their use at full rate, and offsets: two ports per class of each flow."""
    work = records["work_s"][task]
    moving = (records["kind"][task] != TaskKind.COMPUTE) & (work > 0)
    rows, links, rates = [], [], []
    for port, name in enumerate(("scale_up_bytes", "adapter_bytes")):
        load = records[name][task]
        used = moving & (load > 0)
        rows.append(task[used])
        links.append(owner[used] * 2 + port)
        rates.append(load[used] / work[used])
    row, link, rate = (np.concatenate(x) for x in (rows, links, rates))
    order = np.argsort(row, kind="stable")
    links_sorted, offsets = _csr(row[order], link[order], len(records))
    return links_sorted, np.ascontiguousarray(rate[order]), offsets
