"""Expansion of stage programs to all rank classes, compiled: one pass over tasks, no sorting.

Every task of a stage's program becomes one instance per rank class, or one per *orbit*: per group
of classes that take part in it together. Which classes share an instance is the task's
*pattern*. Instances are numbered by task, then by copy, so rows come out in order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Flags, Floats, Integers
from wattree.compiled import kernel, part

#: Whom an edge leads to: the same class, or the class's peer by this row less one of `peers`.
OWN_CLASS = 0
#: An edge between two shared tasks: one per pair of instances, however many classes share both.
MERGED = -1
#: A task whose bytes are those of its record, whatever its class.
FROM_TASK = -1


class Templates(NamedTuple):
    """Tasks of all stages' programs, `(T,)`, and their records, `(R,)`.

    Attributes:
        first: Number of the first instance of a task.
        record: What a task is: its place in all that follow.
        pattern: Number of its pattern.
        base: First rank class of the stage, of all stages' classes.
        stream: Stream of the rank.
        costs: Row of `Loads.by_class`, or `FROM_TASK`.
        uses_links: Whether the task is anything but compute, and sends anything at all.
    """

    first: Integers
    record: Integers
    pattern: Integers
    base: Integers
    stream: Integers
    costs: Integers
    uses_links: Flags


class Patterns(NamedTuple):
    """The classes of a stage that share an instance, counted from the stage's first.

    Attributes:
        copies_at: Where the copies of each pattern begin in `member_offsets`, one more than there
            are patterns, each of which ends with one offset more than it has copies.
        member_offsets: Where the classes of each copy begin in `members`, and end.
        members: Classes of each copy, ascending.
        inverse_at: Where the classes of each pattern begin in `inverse`.
        inverse: The copy of each class.
    """

    copies_at: Integers
    member_offsets: Integers
    members: Integers
    inverse_at: Integers
    inverse: Integers


class Edges(NamedTuple):
    """Edges between tasks: CSR over tasks.

    Attributes:
        offsets: `(T + 1,)`.
        after: The task that waits.
        via: `OWN_CLASS`, `MERGED` or a row of `peers`, counted from 1.
        peers: Peers of each class, counted from their stage's first: next ones, previous ones,
            the mirror; -1 for none.
    """

    offsets: Integers
    after: NDArray[np.int32]
    via: NDArray[np.int32]
    peers: Integers


class Receivers(NamedTuple):
    """The transfers of each row of `Loads.by_class`, with at most `P` peers.

    Attributes:
        peer: Class that gets what a class sends, over all stages, `(rows, P, C)`; -1 for none.
        brought: What one flow brings over the peer's link, `(rows, P, D, C)`: per byte.
        flows: Flows of the class on that link, of the same shape.
    """

    peer: Integers
    brought: Floats
    flows: Floats


class Loads(NamedTuple):
    """Bytes of tasks on each kind of link and direction, `D` of them.

    Attributes:
        of_record: By level of ranks and record, `(V, R, D)`. [B]
        level: Of each class, `(C,)`.
        by_class: For tasks whose bytes depend on the class, `(rows, D, C)`, by `Templates.costs`:
            per byte of `size_bytes`.
        size_bytes: `(R,)`. [B]
        work_s: Of each instance. [s]
        inward: Whether a direction's links are those of the receiver, `(D,)`.
        receivers: Who gets what a class sends, by `Templates.costs`.
        link: Link of each class, `(D, C)`.
        twins: Ranks that one class has on one link, `(D, C)`.
        members: Ranks of a class's group on the link of one of its ranks, by direction and by
            pattern and class as in `Patterns.inverse`; 1 for what is no collective of a group.
        parts: Kind of that part of the group, of the same shape, from `LinkParts`.
    """

    of_record: Floats
    level: Integers
    by_class: Floats
    size_bytes: Floats
    work_s: Floats
    inward: Flags
    receivers: Receivers
    link: Integers
    twins: Floats
    members: Floats
    parts: Integers


class Expansion(NamedTuple):
    """All inputs from which instances are computed."""

    templates: Templates
    patterns: Patterns
    edges: Edges
    loads: Loads


class Rows(NamedTuple):
    """Arrays for the rows of all instances: offsets `(instances + 1,)`, and values.

    Values have more room than is used; the last offset tells how much. `flow_ranks`, the ranks
    that send on each link, `flow_members`, those of one group among them, and `flow_parts`, the
    kind of that part of a group, have no room at all where no one asks.
    """

    stream_offsets: Integers
    stream_ids: Integers
    successor_offsets: Integers
    successors: Integers
    flow_offsets: Integers
    flow_links: Integers
    flow_bytes_per_s: Floats
    flow_ranks: Floats
    flow_members: Floats
    flow_parts: Integers


@kernel
def sort_edges(
    inside: NDArray[np.int32],
    across: Integers,
    record: Integers,
    shared: Flags,
    edges: Edges,
) -> None:
    """Sort edges by the task before: inside stages, then merged ones, then across stages.

    Args:
        inside: Pairs of tasks of one stage, `(E, 2)`.
        across: Rows (before, after, row of `peers` from 1), `(A, 3)`.
        record: What each task is, `(T,)`.
        shared: Whether classes share an instance of its tasks, `(R,)`.
        edges: Filled in place.
    """
    at = edges.offsets
    for e in range(len(inside)):
        at[inside[e, 0] + 1] += 1
    for e in range(len(across)):
        at[across[e, 0] + 1] += 1
    for t in range(1, len(at)):
        at[t] += at[t - 1]
    # From here on an offset tells where the next edge of its task goes.
    for merged in range(1 + shared.any()):
        for e in range(len(inside)):
            before, after = inside[e, 0], inside[e, 1]
            if merged == (shared[record[before]] and shared[record[after]]):
                edges.after[at[before]] = after
                edges.via[at[before]] = MERGED if merged else OWN_CLASS
                at[before] += 1
    for e in range(len(across)):
        before = across[e, 0]
        edges.after[at[before]] = across[e, 1]
        edges.via[at[before]] = across[e, 2]
        at[before] += 1
    for t in range(len(at) - 1, 0, -1):
        at[t] = at[t - 1]
    at[0] = 0


@kernel
def expand(job: Expansion, streams: int, rows: Rows) -> None:
    """Fill the rows of all instances, given the number of streams of a rank."""
    templates, patterns = job.templates, job.patterns
    stream_end = successor_end = flow_end = 0
    for t in range(len(templates.first)):
        instance = templates.first[t]
        record = templates.record[t]
        pattern = templates.pattern[record]
        for copy in range(patterns.copies_at[pattern], patterns.copies_at[pattern + 1] - 1):
            for m in range(patterns.member_offsets[copy], patterns.member_offsets[copy + 1]):
                rank_class = templates.base[record] + patterns.members[m]
                rows.stream_ids[stream_end] = rank_class * streams + templates.stream[record]
                stream_end += 1
            successor_end = _succeed(job, rows, t, copy, successor_end)
            if templates.uses_links[record] and job.loads.work_s[instance] > 0.0:
                flow_end = _flow(job, rows, t, copy, flow_end)
            instance += 1
            rows.stream_offsets[instance] = stream_end
            rows.successor_offsets[instance] = successor_end
            rows.flow_offsets[instance] = flow_end


@part
def _succeed(job: Expansion, rows: Rows, t: int, copy: int, filled: int) -> int:
    """Append the successors of one instance of a task, and return their end."""
    templates, patterns, edges = job.templates, job.patterns, job.edges
    record = templates.record[t]
    merged_from = -1
    for e in range(edges.offsets[t], edges.offsets[t + 1]):
        via = edges.via[e]
        first = templates.first[edges.after[e]]
        inverse = patterns.inverse_at[templates.pattern[templates.record[edges.after[e]]]]
        if via == MERGED and merged_from < 0:
            merged_from = filled
        for m in range(patterns.member_offsets[copy], patterns.member_offsets[copy + 1]):
            rank_class = patterns.members[m]
            if via > OWN_CLASS:
                rank_class = edges.peers[via - 1, templates.base[record] + rank_class]
                if rank_class < 0:
                    continue
            successor = first + patterns.inverse[inverse + rank_class]
            if via == MERGED:
                filled = _merge(rows.successors, merged_from, filled, successor)
            else:
                rows.successors[filled] = successor
                filled += 1
    return filled


@part
def _merge(row: Integers, begin: int, end: int, value: int) -> int:
    """Insert a value into an ascending part of a row unless it is there; return the new end."""
    place = end
    while place > begin and row[place - 1] > value:
        place -= 1
    if place > begin and row[place - 1] == value:
        return end
    for k in range(end, place, -1):
        row[k] = row[k - 1]
    row[place] = value
    return end + 1


@part
def _flow(job: Expansion, rows: Rows, t: int, copy: int, filled: int) -> int:
    """Append the links of one instance of a task, ascending, and return their end.

    A link that several classes share comes as often, by kind of part: their traffic is added up
    later.
    """
    loads, patterns = job.loads, job.patterns
    members = patterns.members
    begin, end = patterns.member_offsets[copy], patterns.member_offsets[copy + 1]
    record, row = job.templates.record[t], filled
    inverse = patterns.inverse_at[job.templates.pattern[record]]
    base, costs = job.templates.base[record], job.templates.costs[record]
    instance = job.templates.first[t] + copy - patterns.copies_at[job.templates.pattern[record]]
    levels = len(loads.of_record)
    for d in range(len(loads.inward)):
        load_bytes = loads.of_record[0, record, d]
        if costs == FROM_TASK and levels > 1:
            for m in range(begin, end):
                rank_class = base + members[m]
                load_bytes = loads.of_record[loads.level[rank_class], record, d]
                if load_bytes > 0.0:
                    twins = loads.twins[d, rank_class]
                    rate = load_bytes / loads.work_s[instance] * twins
                    part = (
                        loads.members[d, inverse + members[m]],
                        loads.parts[d, inverse + members[m]],
                    )
                    _insert(rows, (row, filled), loads.link[d, rank_class], (rate, twins), part)
                    filled += 1
            continue
        if costs != FROM_TASK and loads.inward[d]:
            filled = _received(job, rows, t, (row, filled), (d, base + members[end - 1], instance))
            continue
        if costs != FROM_TASK:
            load_bytes = (
                loads.size_bytes[record] * loads.by_class[costs, d, base + members[end - 1]]
            )
        if load_bytes > 0.0:
            for m in range(begin, end):
                rank_class = base + members[m]
                twins = loads.twins[d, rank_class]
                rate = load_bytes / loads.work_s[instance] * twins
                part = loads.members[d, inverse + members[m]], loads.parts[d, inverse + members[m]]
                _insert(rows, (row, filled), loads.link[d, rank_class], (rate, twins), part)
                filled += 1
    return filled


@part
def _received(
    job: Expansion, rows: Rows, t: int, span: tuple[int, int], at: tuple[int, int, int]
) -> int:
    """Append the links of the receivers of a class's messages, and return their end.

    Args:
        job, rows, t: As of `_flow`.
        span: Where the row of the instance begins, and where it ends so far.
        at: Direction of links, class and instance.
    """
    to, record = job.loads.receivers, job.templates.record[t]
    costs, (d, rank_class, instance) = job.templates.costs[record], at
    begin, filled = span
    for p in range(to.peer.shape[1]):
        peer = to.peer[costs, p, rank_class]
        load_bytes = job.loads.size_bytes[record] * to.brought[costs, p, d, rank_class]
        if peer >= 0 and load_bytes > 0.0:
            flows = to.flows[costs, p, d, rank_class]
            rate = load_bytes / job.loads.work_s[instance] * flows
            _insert(rows, (begin, filled), job.loads.link[d, peer], (rate, flows), (1.0, 0))
            filled += 1
    return filled


@part
def _insert(
    rows: Rows,
    span: tuple[int, int],
    link: int,
    flow: tuple[float, float],
    part: tuple[float, int],
) -> None:
    """Insert a flow after those of the row with no higher link, nor part on the same link.

    Args:
        span: Where the row of the instance begins, and where it ends so far.
        part: Ranks of one group among them, and the kind of that part.
    """
    counted, place = len(rows.flow_ranks) > 0, span[1]
    while place > span[0] and (
        rows.flow_links[place - 1] > link
        or (counted and rows.flow_links[place - 1] == link and rows.flow_parts[place - 1] > part[1])
    ):
        rows.flow_links[place] = rows.flow_links[place - 1]
        rows.flow_bytes_per_s[place] = rows.flow_bytes_per_s[place - 1]
        if counted:
            rows.flow_ranks[place] = rows.flow_ranks[place - 1]
            rows.flow_members[place] = rows.flow_members[place - 1]
            rows.flow_parts[place] = rows.flow_parts[place - 1]
        place -= 1
    rows.flow_links[place] = link
    rows.flow_bytes_per_s[place] = flow[0]
    if counted:
        rows.flow_ranks[place] = flow[1]
        rows.flow_members[place], rows.flow_parts[place] = part
