"""Pass 11: stage programs and rank classes → the execution graph's arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.folding.flow_counts import flow_counts
from wattree.compiler.folding.kernels import (
    FROM_TASK,
    MERGED,
    OWN_CLASS,
    Edges,
    Expansion,
    Loads,
    Patterns,
    Rows,
    Templates,
    expand,
)
from wattree.compiler.tasks.stage_program import StageProgram
from wattree.compiler.tasks.table import joined, load_bytes
from wattree.graph import ExecutionGraph, StreamKind, TaskKind
from wattree.lowering.links import LinkClasses
from wattree.lowering.streams import CATEGORIES, STREAMS, Stream

__all__ = ["StageClasses", "TransferCosts", "execution_graph", "link_kind"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Directions of links. Collectives load both alike, so links that carry nothing else are played
#: once, as `_BOTH`.
_BOTH, _OUT, _IN = "", " out", " in"
#: Transfers whose costs depend on the class, by field of `StageClasses`; the last one's are those
#: of one byte. In the same order: how far the stage lies that gets them.
_BY_CLASS = ("to_next", "to_previous", "to_mirror")
_TO_MIRROR = len(_BY_CLASS) - 1
_HEADINGS = (1, -1, 0)
_STREAM_KINDS = {
    Stream.COMPUTE: StreamKind.COMPUTE,
    Stream.HOST: StreamKind.HOST,
    Stream.HOST_UPDATE: StreamKind.HOST,
    Stream.COPY_OUT: StreamKind.COPY,
    Stream.COPY_IN: StreamKind.COPY,
    Stream.STORAGE: StreamKind.STORAGE,
    Stream.WORKERS: StreamKind.HOST,
    Stream.INPUT_COPY: StreamKind.COPY,
    Stream.DECODER: StreamKind.COPY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferCosts:
    """Costs of one stage's transfers by class, for one direction. Shapes `(K,)`.

    Attributes:
        latency_s: Of a transfer. [s]
        work_s: Time of one byte. [s/B]
        scale_up_bytes, adapter_bytes, uplink_bytes: Sent over links per byte of the tensors.
    """

    latency_s: Floats
    work_s: Floats
    scale_up_bytes: Floats
    adapter_bytes: Floats
    uplink_bytes: Floats


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
        level: Which tasks of its stage's program each class plays, `(K,)`.
        mirror_class: Class of the peer in the stage that holds the same chunks, `(K,)`, if any.
        to_mirror: Costs of transfers to it.
        members: Axes number → members of one group on one link, by kind of link and orbit; None
            where ranks of a class never share a link.
        pool: Pool of each class's devices, `(K,)`; None for one.
        devices: What people call them; empty where all are alike.
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
    level: Integers
    mirror_class: Integers | None = None
    to_mirror: TransferCosts | None = None
    members: Mapping[int, Integers] | None = None
    pool: Integers | None = None
    devices: tuple[str, ...] = ()


class _Tasks:
    """The tasks of all stages' programs as they come, and how often each is played.

    Attributes:
        programs, classes: By stage.
        records: Of the tasks of all stages, `(R,)`.
        by_level: The same with the figures of each level, the first of which is `records`.
        stage_of_record: `(R,)`.
        row: Which of the records each task is, `(T,)`.
        level: Of each class, over all stages.
        first_task, class_base: First task and class of each stage, and their numbers.
        patterns: Who shares an instance.
        last_member: The class whose figures an instance takes, by copy of a pattern.
        pattern, copies, first: Pattern, instances and first instance of each task, `(T,)`.
        stage: Of each task, `(T,)`.
    """

    def __init__(self, programs: Sequence[StageProgram], classes: Sequence[StageClasses]) -> None:
        self.programs, self.classes = programs, classes
        counts = [len(program.rows) for program in programs]
        sizes = [len(program.records) for program in programs]
        self.records = joined([program.records for program in programs])
        self.by_level = [self.records]
        for at in range(max(len(program.levels) for program in programs)):
            records = [p.levels[at] if at < len(p.levels) else p.records for p in programs]
            self.by_level.append(joined(records))
        self.stage_of_record = np.repeat(np.arange(len(programs)), sizes)
        self.row = np.concatenate([program.rows for program in programs])
        self.row += np.repeat(_starts(sizes)[:-1], counts)
        self.level = np.concatenate([stage.level for stage in classes])
        self.first_task = _starts(counts)
        self.class_base = _starts([len(stage.ranks) for stage in classes])
        self.stage = np.repeat(np.arange(len(programs)), counts)
        orbits = [_orbits(stage) for stage in classes]
        self.patterns = _patterns([orbit for stage in orbits for orbit in stage])
        ends = self.patterns.member_offsets[1:]
        self.last_member = self.patterns.members[np.maximum(ends, 1) - 1]
        pattern = self._pattern_of_record([len(stage) for stage in orbits])
        copies = (np.diff(self.patterns.copies_at) - 1)[pattern]
        self.pattern, self.copies = pattern[self.row], copies[self.row]
        self._is_single = bool((copies == 1).all())
        self.first = _starts(self.copies)[:-1]
        self._played: tuple[Integers, Integers] | None = None  # level and record of instances

    @property
    def instances(self) -> int:
        """How many tasks are played."""
        return int(self.copies.sum())

    @property
    def width(self) -> Integers:
        """Classes of each task's stage, `(T,)`."""
        return np.diff(self.class_base)[self.stage]

    def column(self, name: str, factor: Floats | None = None) -> NDArray[Any]:
        """Return a field for every instance, times a factor of its record."""
        if len(self.by_level) == 1:
            values = self.records[name] if factor is None else self.records[name] * factor
            values = np.ascontiguousarray(values)[self.row]
            return values if self._is_single else np.repeat(values, self.copies)
        if self._played is None:
            _, task, owner = self.instances_of(np.ones(len(self.row), dtype=bool))
            self._played = self.level[owner], self.row[task]
        values = np.stack([records[name] for records in self.by_level])
        return np.asarray((values if factor is None else values * factor)[self._played])

    def micro_batches(self) -> Integers:
        """Return the micro-batch of every instance."""
        values = np.concatenate([program.micro_batches for program in self.programs])
        found: Integers = np.repeat(values, self.copies).astype(np.int64)
        return found

    def copy_of_instance(self) -> Integers:
        """Return the copy of its pattern that each instance is, `(I,)`."""
        before = self.patterns.copies_at[self.pattern] - self.first
        return np.arange(self.instances) + np.repeat(before, self.copies)

    def instances_of(self, chosen: NDArray[np.bool_]) -> tuple[Integers, Integers, Integers]:
        """Return the instances of chosen tasks: number, task, class whose figures it takes."""
        tasks = np.flatnonzero(chosen)
        copies = self.copies[tasks]
        task = np.repeat(tasks, copies)
        copy = np.arange(len(task)) - np.repeat(_starts(copies)[:-1], copies)
        member = self.last_member[self.patterns.copies_at[self.pattern[task]] + copy]
        return self.first[task] + copy, task, self.class_base[self.stage[task]] + member

    def mixed(self) -> NDArray[np.bool_]:
        """Return which tasks are of stages with several levels of ranks, `(T,)`."""
        return np.array([bool(program.levels) for program in self.programs])[self.stage]

    def members_of(self, chosen: NDArray[np.bool_]) -> tuple[Integers, Integers, Integers]:
        """Return every (instance, task, class) of chosen tasks, by instance."""
        tasks = np.flatnonzero(chosen)
        width = self.width[tasks]
        task = np.repeat(tasks, width)
        place = np.arange(len(task)) - np.repeat(_starts(width)[:-1], width)
        at = self.patterns.inverse_at[self.pattern[task]]
        member = self.patterns.members[at + place]
        instance = self.first[task] + self.patterns.inverse[at + member]
        return instance, task, self.class_base[self.stage[task]] + member

    def _pattern_of_record(self, patterns: Sequence[int]) -> Integers:
        """Collectives go by the orbits of their axes, everything else by classes."""
        start = _starts(patterns)
        axes = self.records["axes"].astype(np.int64)
        pattern = start[self.stage_of_record]
        for number, stage in enumerate(self.classes):
            own = self.stage_of_record == number
            places = {axis: place for place, axis in enumerate(stage.orbits, start=1)}
            table = np.zeros(max([int(axes[own].max(initial=0)), *places]) + 2, dtype=np.int64)
            for axis, place in places.items():
                table[axis] = place
            pattern[own] += table[axes[own]]  # -1, no axes: the last entry
        return pattern


def _starts(counts: Sequence[int] | Integers) -> Integers:
    """Return where each of consecutive runs begins, and where the last one ends."""
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def _orbits(stage: StageClasses) -> list[Integers]:
    """Return the copy that each class has of a task: of its own, then by number of axes."""
    return [np.arange(len(stage.ranks)), *stage.orbits.values()]


def _patterns(orbits: Sequence[Integers]) -> Patterns:
    copies = [np.bincount(orbit) for orbit in orbits]
    members_at = _starts([len(orbit) for orbit in orbits])
    offsets = [at + _starts(count) for at, count in zip(members_at, copies, strict=False)]
    return Patterns(
        copies_at=_starts([len(row) for row in offsets]),
        member_offsets=np.concatenate(offsets),
        members=np.concatenate([np.argsort(orbit, kind="stable") for orbit in orbits]),
        inverse_at=members_at,
        inverse=np.concatenate(orbits).astype(np.int64),
    )


def execution_graph(
    programs: Sequence[StageProgram],
    classes: Sequence[StageClasses],
    *,
    links: Sequence[LinkClasses],
    names: Sequence[str],
    compute_rate_while_communicating: float,
    communication_rate_while_computing: float,
    pipelines: Sequence[int] | None = None,
) -> ExecutionGraph:
    """Return the arrays of the whole job, or of several.

    Args:
        programs: One per stage.
        classes: One per stage.
        pipelines: Stages of each job, where there are several; None for one of all stages.
        links: Link classes by kind.
        names: Strings that tasks name by number.
        compute_rate_while_communicating, communication_rate_while_computing: Mutual slowdown.
    """
    tasks = _Tasks(programs, classes)
    costs = _cost_rows(tasks)
    latency_s, work_s, wire_bytes = _times(tasks, costs)
    directions = _directions(tasks, costs, links)
    loads = _loads(tasks, directions, work_s, pipelines or [len(programs)])
    # Only flows that stand for several need to know for how many.
    counted = bool((loads.twins > 1).any())
    rows = _expanded(tasks, costs, directions, loads, counted=counted)
    counts = None
    if counted:
        of_copy = _members_of_copies(tasks, directions)
        counts = flow_counts(rows, loads, members=of_copy, copy=tasks.copy_of_instance())
    number = int(tasks.class_base[-1])
    return ExecutionGraph(
        kind=tasks.column("kind"),
        latency_s=latency_s,
        work_s=work_s,
        stream_offsets=rows.stream_offsets,
        stream_ids=rows.stream_ids,
        successor_offsets=rows.successor_offsets,
        successors=rows.successors,
        flow_offsets=rows.flow_offsets,
        flow_links=rows.flow_links,
        flow_bytes_per_s=rows.flow_bytes_per_s,
        overlaps=tasks.column("overlaps"),
        alloc_bytes=tasks.column("alloc_bytes"),
        free_bytes=tasks.column("free_bytes"),
        stream_class=np.repeat(np.arange(number), len(STREAMS)),
        stream_kind=np.tile(
            np.array(
                [_STREAM_KINDS.get(s, StreamKind.COMMUNICATION) for s in range(len(STREAMS))],
                dtype=np.int8,
            ),
            number,
        ),
        class_ranks=np.concatenate([stage.ranks for stage in classes]),
        class_names=_class_names(classes),
        resident_bytes=np.concatenate([stage.resident.sum(axis=1) for stage in classes]),
        link_bandwidth_bytes_per_s=np.concatenate(
            [kind.bandwidth_bytes_per_s for kind, _ in directions]
        ),
        link_names=_link_names(classes, directions),
        compute_rate_while_communicating=compute_rate_while_communicating,
        communication_rate_while_computing=communication_rate_while_computing,
        name_ids=tasks.column("name").astype(np.int64),
        names=tuple(names),
        phase=tasks.column("phase"),
        stage=tasks.column("stage"),
        micro_batch=tasks.micro_batches(),
        flop=tasks.column("flop"),
        memory_traffic_bytes=tasks.column("traffic_bytes"),
        link_traffic_bytes=wire_bytes,
        memory_category=tasks.column("category"),
        category_names=CATEGORIES,
        resident_by_category=np.concatenate([stage.resident for stage in classes]),
        flow_counts=counts,
        operator_class=tasks.column("operator_class"),
    )


def _members_of_copies(tasks: _Tasks, directions: Sequence[tuple[LinkClasses, str]]) -> Integers:
    """Return the ranks of one group on one link by direction and copy of a pattern."""
    kinds = list(dict.fromkeys(kind.name for kind, _ in directions))
    columns = []
    for stage in tasks.classes:
        columns.append(np.ones((len(kinds), len(stage.ranks) + 1), dtype=np.int64))
        for number, orbit in stage.orbits.items():
            copies = int(orbit.max(initial=0)) + 1
            known = None if stage.members is None else stage.members[number]
            own = np.ones((len(kinds), copies), dtype=np.int64) if known is None else known
            columns.append(np.pad(own, ((0, 0), (0, 1)), constant_values=1))
    of_copy = np.concatenate(columns, axis=1)
    return of_copy[[kinds.index(kind.name) for kind, _ in directions]]


def _class_names(classes: Sequence[StageClasses]) -> tuple[str, ...]:
    names = []
    for stage in classes:
        for index, ranks in enumerate(stage.ranks):
            suffix = f".{index}" if len(stage.ranks) > 1 else ""
            on = f" on {stage.devices[index]}" if any(stage.devices) else ""
            names.append(f"{stage.name}{suffix}{on} ({int(ranks)} ranks)")
    return tuple(names)


def _cost_rows(tasks: _Tasks) -> Integers:
    """Return which of `_BY_CLASS` tells what a record costs, `FROM_TASK` if it does itself."""
    stream, rows = tasks.records["stream"], np.full(len(tasks.records), FROM_TASK, dtype=np.int64)
    rows[stream == Stream.SEND_NEXT] = _BY_CLASS.index("to_next")
    rows[stream == Stream.SEND_PREVIOUS] = _BY_CLASS.index("to_previous")
    mirrored = np.array([stage.to_mirror is not None for stage in tasks.classes])
    if mirrored.any():
        exchanged = (tasks.records["kind"] == TaskKind.TRANSFER) & (stream == Stream.REDUCE)
        rows[exchanged & mirrored[tasks.stage_of_record]] = _TO_MIRROR
    return rows


def _by_class(tasks: _Tasks, row: int, name: str) -> Floats:
    """Return a figure of the transfers of one row of `_BY_CLASS`, for the classes of all stages."""
    parts = []
    for stage in tasks.classes:
        costs = getattr(stage, _BY_CLASS[row])
        known = costs is not None and hasattr(costs, name)  # copies to the host have no class
        parts.append(getattr(costs, name) if known else np.zeros(len(stage.ranks)))
    return np.concatenate(parts)


def _times(tasks: _Tasks, costs: Integers) -> tuple[Floats, Floats, Floats]:
    """Return latency, work and bytes sent of all instances."""
    records = tasks.records
    alike = np.ones(len(records), dtype=bool)
    compute = records["kind"] == TaskKind.COMPUTE
    slowed = np.ones(len(records))
    for number, stage in enumerate(tasks.classes):
        own = compute & (tasks.stage_of_record == number)
        if (stage.slowdown == stage.slowdown[0]).all():
            slowed[own] = stage.slowdown[0]
        else:
            alike[own] = False
    latency_s = tasks.column("latency_s")
    work_s = tasks.column("work_s", slowed)
    wire_bytes = tasks.column("wire_bytes")
    if not alike.all():
        instance, _, owner = tasks.instances_of(~alike[tasks.row])
        work_s[instance] *= np.concatenate([stage.slowdown for stage in tasks.classes])[owner]
    if (mixed := tasks.mixed()).any():
        _slowest_member(tasks, mixed, latency_s, work_s)
    for row in range(len(_BY_CLASS)):
        instance, task, owner = tasks.instances_of((costs == row)[tasks.row])
        latency_s[instance] = _by_class(tasks, row, "latency_s")[owner]
        work_s[instance] = (
            _by_class(tasks, row, "work_s")[owner] * records["wire_bytes"][tasks.row[task]]
        )
    return latency_s, work_s, wire_bytes


def _slowest_member(
    tasks: _Tasks, mixed: NDArray[np.bool_], latency_s: Floats, work_s: Floats
) -> None:
    """Give tasks of several levels of ranks the time of their slowest member, in place."""
    instance, task, owner = tasks.members_of(mixed)
    kind, row = tasks.level[owner], tasks.row[task]
    first = np.flatnonzero(np.diff(instance, prepend=-1))
    latency = np.stack([records["latency_s"] for records in tasks.by_level])[kind, row]
    work = np.stack([records["work_s"] for records in tasks.by_level])[kind, row]
    slowdown = np.concatenate([stage.slowdown for stage in tasks.classes])[owner]
    work = np.where(tasks.records["kind"][row] == TaskKind.COMPUTE, work * slowdown, work)
    latency_s[instance[first]] = np.maximum.reduceat(latency, first)
    work_s[instance[first]] = np.maximum.reduceat(work, first)


def _directions(
    tasks: _Tasks, costs: Integers, links: Sequence[LinkClasses]
) -> list[tuple[LinkClasses, str]]:
    """Return every kind of link with the directions to play."""
    transfers = tasks.records["kind"] == TaskKind.TRANSFER
    result = []
    for kind in links:
        if kind.one_way:
            result.append((kind, _BOTH))
            continue
        apart = bool((tasks.records[kind.load][transfers & (costs == FROM_TASK)] > 0).any())
        for row in range(len(_BY_CLASS)):
            _, task, owner = tasks.instances_of((transfers & (costs == row))[tasks.row])
            size = tasks.records["wire_bytes"][tasks.row[task]]
            apart |= bool((_by_class(tasks, row, kind.load)[owner] * size > 0).any())
        result += [(kind, way) for way in ((_OUT, _IN) if apart else (_BOTH,))]
    return result


def _link_names(
    classes: Sequence[StageClasses], directions: Sequence[tuple[LinkClasses, str]]
) -> tuple[str, ...]:
    """Name each link class by the first rank class that uses it."""
    class_names = _class_names(classes)
    names = []
    for kind, way in directions:
        _, first = np.unique(kind.of_class, return_index=True)
        names += [f"{class_names[c]} {kind.name}{way}" for c in first]
    return tuple(names)


def link_kind(name: str) -> str:
    """Return the kind in the name of a link class of a compiled graph, such as `uplink`."""
    return name.removesuffix(_OUT).removesuffix(_IN).rsplit(") ", 1)[-1]


def _expanded(
    tasks: _Tasks,
    costs: Integers,
    directions: Sequence[tuple[LinkClasses, str]],
    loads: Loads,
    *,
    counted: bool,
) -> Rows:
    """Return streams, successors and flows of all instances; of flows the ranks, if `counted`."""
    edges = _edges(tasks)
    sends = (loads.of_record > 0).any(axis=(0, 2)) | (costs != FROM_TASK)
    templates = Templates(
        first=tasks.first,
        pattern=tasks.pattern,
        record=tasks.row,
        base=tasks.class_base[tasks.stage_of_record],
        stream=tasks.records["stream"].astype(np.int64),
        costs=costs,
        uses_links=sends & (tasks.records["kind"] != TaskKind.COMPUTE),
    )
    width, count = tasks.width, tasks.instances
    most_edges = int((np.diff(edges.offsets) * width).sum())
    most_flows = int(width[templates.uses_links[tasks.row]].sum()) * len(directions)
    # What is not filled costs no memory: the system gives pages when they are written.
    rows = Rows(
        stream_offsets=np.zeros(count + 1, dtype=np.int64),
        stream_ids=np.empty(int(width.sum()), dtype=np.int64),
        successor_offsets=np.zeros(count + 1, dtype=np.int64),
        successors=np.empty(most_edges, dtype=np.int64),
        flow_offsets=np.zeros(count + 1, dtype=np.int64),
        flow_links=np.empty(most_flows, dtype=np.int64),
        flow_bytes_per_s=np.empty(most_flows),
        flow_ranks=np.empty(most_flows if counted else 0),
    )
    job = Expansion(templates=templates, patterns=tasks.patterns, edges=edges, loads=loads)
    expand(job, len(STREAMS), rows)
    flows = slice(0, int(rows.flow_offsets[-1]))
    rows = rows._replace(
        successors=rows.successors[: int(rows.successor_offsets[-1])],
        flow_links=rows.flow_links[flows],
        flow_bytes_per_s=rows.flow_bytes_per_s[flows],
        flow_ranks=rows.flow_ranks[flows],
    )
    is_shared = any(len(k.bandwidth_bytes_per_s) < len(k.of_class) for k, _ in directions)
    return _added_up(rows) if is_shared else rows


def _added_up(rows: Rows) -> Rows:
    """Add up what several classes of a flow send over the same link."""
    links, offsets = rows.flow_links, rows.flow_offsets
    if not len(links):
        return rows
    fresh = np.ones(len(links), dtype=bool)
    np.not_equal(links[1:], links[:-1], out=fresh[1:])
    fresh[offsets[:-1][np.diff(offsets) > 0]] = True
    if fresh.all():
        return rows
    first = np.flatnonzero(fresh)
    ranks = rows.flow_ranks
    return rows._replace(
        flow_offsets=_starts(fresh)[offsets],
        flow_links=links[fresh],
        flow_bytes_per_s=np.add.reduceat(rows.flow_bytes_per_s, first),
        flow_ranks=np.add.reduceat(ranks, first) if len(ranks) else ranks,
    )


def _edges(tasks: _Tasks) -> Edges:
    """Return the edges among tasks, each row in order: own class, merged, to other stages."""
    before, after = [], []
    for base, program in zip(tasks.first_task, tasks.programs, strict=False):
        before.append(program.edges[:, 0] + base)
        after.append(program.edges[:, 1] + base)
    inside = sum(len(part) for part in before)
    via = [np.full(inside, OWN_CLASS, dtype=np.int64)]
    shared = tasks.copies < tasks.width
    merged = shared[np.concatenate(before)] & shared[np.concatenate(after)]
    via[0][merged] = MERGED
    for sent, waiting, row in _transfers(tasks):
        before.append(sent)
        after.append(waiting)
        via.append(np.full(len(sent), row, dtype=np.int64))
    rows, kinds = np.concatenate(before), np.concatenate(via)
    rank = np.where(kinds == OWN_CLASS, 0, np.where(kinds == MERGED, 1, 2))
    order = np.argsort(rows * 3 + rank, kind="stable")
    return Edges(
        offsets=_starts(np.bincount(rows, minlength=len(tasks.row))),
        after=np.concatenate(after)[order],
        via=kinds[order],
        peers=np.stack([_peers(tasks.classes, heading) for heading in _HEADINGS]),
    )


def _transfers(tasks: _Tasks) -> list[tuple[Integers, Integers, int]]:
    """Return transfers, what waits for each in another stage, and the row of `peers`."""
    result = []
    for base, program in zip(tasks.first_task, tasks.programs, strict=False):
        by_target: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for send in program.sends:
            for entry in tasks.programs[send.stage].receives[send.received]:
                by_target.setdefault((send.stage, send.heading), []).append((send.task, entry))
        for (target, heading), found in by_target.items():
            sends, entries = np.array(found, dtype=np.int64).T
            row = 1 + _HEADINGS.index(heading)
            result.append((sends + base, entries + tasks.first_task[target], row))
    return result


def _peers(classes: Sequence[StageClasses], heading: int) -> Integers:
    """Return the class that each class sends to, counted from its stage's first."""
    parts = []
    for stage in classes:
        peer = (
            (stage.next_class if heading > 0 else stage.previous_class)
            if heading
            else stage.mirror_class
        )
        parts.append(np.zeros(len(stage.ranks), dtype=np.int64) if peer is None else peer)
    return np.concatenate(parts).astype(np.int64)


def _sent(tasks: _Tasks, names: Sequence[str]) -> Floats:
    """Return what the records of each level send over each kind of link, `(V, R, D)`. [B]"""
    shape = len(tasks.by_level), len(tasks.records), len(names)
    sent = np.empty(shape)
    for level, records in enumerate(tasks.by_level):
        for kind, name in enumerate(names):
            sent[level, :, kind] = load_bytes(records, name)
    return sent


def _loads(
    tasks: _Tasks,
    directions: Sequence[tuple[LinkClasses, str]],
    work_s: Floats,
    pipelines: Sequence[int],
) -> Loads:
    """Return what tasks send over links; every class of a flow sends over its own.

    The peer of a transfer receives over its own links. Exchanges with the mirror stage go both
    ways at once, as a collective does.
    """
    number = int(tasks.class_base[-1])
    base, count = tasks.class_base[:-1], np.diff(tasks.class_base)
    ends = np.cumsum(pipelines)[:-1]
    ahead, behind = (
        np.concatenate([np.roll(stages, by) for stages in np.split(base, ends)]) for by in (-1, 1)
    )
    following = np.repeat(ahead, count) + _peers(tasks.classes, 1)
    preceding = np.repeat(behind, count) + _peers(tasks.classes, -1)
    first = _starts([len(kind.bandwidth_bytes_per_s) for kind, _ in directions])
    names = [kind.load for kind, _ in directions]
    return Loads(
        of_record=_sent(tasks, names),
        level=tasks.level,
        by_class=np.stack(
            [
                np.stack([_by_class(tasks, row, name) for name in names])
                for row in range(len(_BY_CLASS))
            ]
        ),
        size_bytes=tasks.records["wire_bytes"].copy(),
        work_s=work_s,
        inward=np.array([way == _IN for _, way in directions]),
        receiver=np.stack([following, preceding, np.arange(number)]),
        link=np.stack([at + k.of_class for at, (k, _) in zip(first, directions, strict=False)]),
        twins=np.stack([kind.twins for kind, _ in directions]),
    )
