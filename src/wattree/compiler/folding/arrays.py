"""Pass 11: stage programs and rank classes → the execution graph's arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.compiler.folding.kernels import (
    FROM_TASK,
    Edges,
    Expansion,
    Loads,
    Rows,
    Templates,
    expand,
    sort_edges,
)
from wattree.compiler.folding.link_parts import LinkParts
from wattree.compiler.folding.receivers import HEADINGS, peers, peers_of, receivers
from wattree.compiler.folding.stage_classes import StageClasses
from wattree.compiler.folding.task_costs import BY_CLASS, by_class, cost_rows, times
from wattree.compiler.folding.task_instances import TaskInstances, starts
from wattree.compiler.tasks.table import load_bytes
from wattree.graph import ExecutionGraph, StreamKind, TaskKind
from wattree.lowering.links import LinkClasses
from wattree.lowering.streams import CATEGORIES, STREAMS, Stream

#: Above this the largest flow on a link is no rounding of the mean.
_UNEQUAL = 1.0 + 1e-12


#: Directions of links. Collectives load both alike, so links that carry nothing else are executed
#: once, as `_BOTH`.
_BOTH, _OUT, _IN = "", " out", " in"
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


def execution_graph(
    tasks: TaskInstances,
    *,
    links: Sequence[LinkClasses],
    names: Sequence[str],
    slowdown: tuple[float, float],
    pipelines: Sequence[int],
) -> ExecutionGraph:
    """Return the arrays of the whole job, or of several.

    Args:
        links, names: Link classes by kind, and strings that tasks name by number.
        slowdown: Rates of compute while communicating, and of communication while computing.
        pipelines: Stages of each job.
    """
    classes = tasks.classes
    costs = cost_rows(tasks)
    latency_s, work_s, wire_bytes = times(tasks, costs)
    directions = _directions(tasks, costs, links)
    rows, counts, largest = _rows(tasks, costs, directions, work_s, pipelines)
    bandwidths = np.concatenate([kind.bandwidth_bytes_per_s for kind, _ in directions])
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
        stream_class=np.repeat(np.arange(len(tasks.level)), len(STREAMS)),
        stream_kind=np.array(_kinds_of_streams() * len(tasks.level), dtype=np.int8),
        class_ranks=np.concatenate([stage.ranks for stage in classes]),
        class_names=_class_names(classes),
        static_bytes=np.concatenate([stage.static.sum(axis=1) for stage in classes]),
        link_bandwidth_bytes_per_s=bandwidths,
        link_names=_link_names(classes, directions),
        compute_rate_while_communicating=slowdown[0],
        communication_rate_while_computing=slowdown[1],
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
        static_by_category=np.concatenate([stage.static for stage in classes]),
        flow_counts=counts,
        flow_largest_bytes_per_s=largest,
        operator_class=tasks.column("operator_class"),
    )


def _kinds_of_streams() -> list[StreamKind]:
    return [_STREAM_KINDS.get(s, StreamKind.COMMUNICATION) for s in range(len(STREAMS))]


def _rows(
    tasks: TaskInstances,
    costs: Integers,
    directions: Sequence[tuple[LinkClasses, str]],
    work_s: Floats,
    pipelines: Sequence[int],
) -> tuple[Rows, Floats | None, Floats | None]:
    """Return the rows of all instances, and of their flows: for how many each stands, the largest.

    Only flows that stand for several need to know that.
    """
    loads = _loads(tasks, directions, work_s, pipelines)
    several = (
        any(stage.parts for stage in tasks.classes)
        or bool((loads.twins > 1).any())
        or bool((loads.receivers.flows > 1).any())
    )
    rows = _expanded(tasks, costs, directions, loads, counted=several)
    if several:
        return with_counts(rows)
    is_shared = any(len(k.bandwidth_bytes_per_s) < len(k.of_class) for k, _ in directions)
    return added_up(rows) if is_shared else rows, None, None


def _parts(
    tasks: TaskInstances, directions: Sequence[tuple[LinkClasses, str]]
) -> tuple[Floats, Integers]:
    """Return ranks and kind of the parts of groups, by direction and as `Patterns.inverse`."""
    kinds = list(dict.fromkeys(kind.name for kind, _ in directions))
    columns = []
    for stage in tasks.classes:
        shape = len(kinds), len(stage.ranks)
        alone = LinkParts(ranks=np.ones(shape, np.int64), kind=np.zeros(shape, np.int64))
        columns += [alone, *(stage.parts.get(number, alone) for number in stage.orbits)]
    rows = [kinds.index(kind.name) for kind, _ in directions]
    ranks = np.concatenate([part.ranks for part in columns], axis=1)[rows]
    kind = np.concatenate([part.kind for part in columns], axis=1)[rows]
    return ranks.astype(np.float64), kind


def _class_names(classes: Sequence[StageClasses]) -> tuple[str, ...]:
    names = []
    for stage in classes:
        for index, ranks in enumerate(stage.ranks):
            suffix = f".{index}" if len(stage.ranks) > 1 else ""
            on = f" on {stage.devices[index]}" if any(stage.devices) else ""
            names.append(f"{stage.name}{suffix}{on} ({int(ranks)} ranks)")
    return tuple(names)


def _directions(
    tasks: TaskInstances, costs: Integers, links: Sequence[LinkClasses]
) -> list[tuple[LinkClasses, str]]:
    """Return every kind of link with the directions to simulate."""
    transfers = tasks.records["kind"] == TaskKind.TRANSFER
    result = []
    for kind in links:
        if kind.one_way:
            result.append((kind, _BOTH))
            continue
        apart = bool((tasks.records[kind.load][transfers & (costs == FROM_TASK)] > 0).any())
        for row in range(len(BY_CLASS)):
            record, owner, _ = tasks.owners_of(np.flatnonzero(transfers & (costs == row)))
            size = tasks.records["wire_bytes"][record]
            apart |= bool((by_class(tasks, row, kind.load)[owner] * size > 0).any())
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
    tasks: TaskInstances,
    costs: Integers,
    directions: Sequence[tuple[LinkClasses, str]],
    loads: Loads,
    *,
    counted: bool,
) -> Rows:
    """Return streams, successors and flows of all instances; ranks of flows, if `counted`."""
    edges = _edges(tasks)
    sends = (loads.of_record > 0).any(axis=(0, 2)) | (costs != FROM_TASK)
    templates = Templates(
        first=tasks.first,
        record=tasks.row,
        pattern=tasks.pattern,
        base=tasks.class_base[tasks.stage_of_record],
        stream=tasks.records["stream"].astype(np.int64),
        costs=costs,
        uses_links=sends & (tasks.records["kind"] != TaskKind.COMPUTE),
    )
    count, times = tasks.instances, np.bincount(tasks.row, minlength=len(tasks.records))
    width = np.diff(tasks.class_base)
    most_edges = int((np.diff(edges.offsets[tasks.first_task]) * width).sum())
    to_each = len(directions) * loads.receivers.peer.shape[1]
    most_flows = int((times * tasks.width)[templates.uses_links].sum()) * to_each
    # What is not filled costs no memory: the system gives pages when they are written.
    rows = Rows(
        stream_offsets=np.zeros(count + 1, dtype=np.int64),
        stream_ids=np.empty(int((times * tasks.width).sum()), dtype=np.int64),
        successor_offsets=np.zeros(count + 1, dtype=np.int64),
        successors=np.empty(most_edges, dtype=np.int64),
        flow_offsets=np.zeros(count + 1, dtype=np.int64),
        flow_links=np.empty(most_flows, dtype=np.int64),
        flow_bytes_per_s=np.empty(most_flows),
        flow_ranks=np.empty(most_flows if counted else 0),
        flow_members=np.empty(most_flows if counted else 0),
        flow_parts=np.empty(most_flows if counted else 0, dtype=np.int64),
    )
    job = Expansion(templates=templates, patterns=tasks.patterns, edges=edges, loads=loads)
    expand(job, len(STREAMS), rows)
    flows = slice(0, int(rows.flow_offsets[-1]))
    used = flows if counted else slice(0, 0)
    return rows._replace(
        successors=rows.successors[: int(rows.successor_offsets[-1])],
        flow_links=rows.flow_links[flows],
        flow_bytes_per_s=rows.flow_bytes_per_s[flows],
        flow_ranks=rows.flow_ranks[used],
        flow_members=rows.flow_members[used],
        flow_parts=rows.flow_parts[used],
    )


def _edges(tasks: TaskInstances) -> Edges:
    """Return the edges among tasks, each row in order: own class, merged, to other stages."""
    programs = [program.edges for program in tasks.programs]
    inside = np.concatenate(
        [edges + first for edges, first in zip(programs, tasks.first_task.tolist(), strict=False)]
    )
    by_heading = [peers(tasks.classes, heading) for heading in HEADINGS]
    across = np.array(_transfers(tasks, by_heading), dtype=np.int64).reshape(-1, 3)
    edges = Edges(
        offsets=np.zeros(len(tasks.row) + 1, dtype=np.int64),
        after=np.empty(len(inside) + len(across), dtype=np.int32),
        via=np.empty(len(inside) + len(across), dtype=np.int32),
        peers=np.concatenate(by_heading),
    )
    sort_edges(inside, across, tasks.row, tasks.copies < tasks.width, edges)
    return edges


def _transfers(tasks: TaskInstances, by_heading: Sequence[Integers]) -> list[tuple[int, int, int]]:
    """Return transfers, the tasks of other stages that wait for each, and the row of `peers`."""
    first = tasks.first_task.tolist()
    row = dict(zip(HEADINGS, (1 + starts(list(map(len, by_heading)))).tolist(), strict=False))
    rows = [
        {h: range(row[h], row[h] + len(peers_of(stage, h))) for h in HEADINGS}
        for stage in tasks.classes
    ]
    return [
        (send.task + base, entry + first[send.stage], peer)
        for base, program, own in zip(first, tasks.programs, rows, strict=False)
        for send in program.sends
        for entry in tasks.programs[send.stage].receives[send.transfer]
        for peer in own[send.heading]
    ]


def _sent(tasks: TaskInstances, names: Sequence[str]) -> Floats:
    """Return the bytes of each level's records on each kind of link, `(V, R, D)`. [B]"""
    shape = len(tasks.by_level), len(tasks.records), len(names)
    sent = np.empty(shape)
    for level, records in enumerate(tasks.by_level):
        for kind, name in enumerate(names):
            sent[level, :, kind] = load_bytes(records, name)
    return sent


def _loads(
    tasks: TaskInstances,
    directions: Sequence[tuple[LinkClasses, str]],
    work_s: Floats,
    pipelines: Sequence[int],
) -> Loads:
    """Return the bytes of tasks on links; every class of a flow uses its own links."""
    first = starts([len(kind.bandwidth_bytes_per_s) for kind, _ in directions])
    names = [kind.load for kind, _ in directions]
    sent = np.stack(
        [np.stack([by_class(tasks, row, name) for name in names]) for row in range(len(BY_CLASS))]
    )
    twins = np.stack([kind.twins for kind, _ in directions])
    members, parts = _parts(tasks, directions)
    return Loads(
        of_record=_sent(tasks, names),
        level=tasks.level,
        by_class=sent,
        size_bytes=tasks.records["wire_bytes"].copy(),
        work_s=work_s,
        inward=np.array([way == _IN for _, way in directions]),
        receivers=receivers(tasks, names, sent, twins, pipelines),
        link=np.stack([at + k.of_class for at, (k, _) in zip(first, directions, strict=False)]),
        twins=twins,
        members=members,
        parts=parts,
    )


def added_up(rows: Rows) -> Rows:
    """Add up the bytes that several classes of a flow send over the same link."""
    fresh = _begins(rows)
    if fresh.all():
        return rows
    return _joined(rows, fresh)


def with_counts(rows: Rows) -> tuple[Rows, Floats, Floats | None]:
    """Add up flows that were counted.

    Returns:
        The rows; for each of their flows, how many it stands for, and what the largest of these
        takes, if any differ. [B/s]
    """
    begins = _begins(rows)
    by_part = begins.copy()  # parts of groups that send as much: what all take by their number
    by_part[1:] |= rows.flow_parts[1:] != rows.flow_parts[:-1]
    parts = _joined(rows, by_part)
    if not len(parts.flow_links):
        return rows, parts.flow_ranks, None
    number = parts.flow_ranks / parts.flow_members
    first = np.flatnonzero(begins[by_part])
    found = _joined(rows, begins)
    counts = np.add.reduceat(number, first)
    largest = np.maximum.reduceat(parts.flow_bytes_per_s / number, first)
    differ = (largest > found.flow_bytes_per_s / counts * _UNEQUAL).any()
    return found, counts, largest if differ else None


def _begins(rows: Rows) -> Flags:
    """Return which entries are the first of their task and link."""
    links, offsets = rows.flow_links, rows.flow_offsets
    found = np.ones(len(links), dtype=bool)
    np.not_equal(links[1:], links[:-1], out=found[1:])
    found[offsets[:-1][np.diff(offsets) > 0]] = True
    return found


def _joined(rows: Rows, begins: Flags) -> Rows:
    """Return rows whose entries are sums from each chosen one to the next."""
    first = np.flatnonzero(begins)
    if not len(first):
        return rows
    ranks = rows.flow_ranks
    return rows._replace(
        flow_offsets=starts(begins.astype(np.int64))[rows.flow_offsets],
        flow_links=rows.flow_links[begins],
        flow_bytes_per_s=np.add.reduceat(rows.flow_bytes_per_s, first),
        flow_ranks=np.add.reduceat(ranks, first) if len(ranks) else ranks,
        flow_members=rows.flow_members[begins] if len(ranks) else rows.flow_members,
    )
