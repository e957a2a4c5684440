"""The unfolded graph of a step → the messages of each rank's trace.

Every task becomes one node on each rank that takes part in it; a transfer becomes a send and, on
the rank where something waits for it, a receive. Dependencies inside a rank are data
dependencies; the order of a stream is in the control dependencies.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from wattree.compiler import Compilation
from wattree.errors import SimulationError
from wattree.graph import ExecutionGraph, TaskKind
from wattree.interchange.collectives import chakra_size_bytes, collective_types, members_of
from wattree.interchange.own import OwnColumns, add_links, add_own_attributes, add_own_metadata
from wattree.interchange.schema import (
    SCHEMA_VERSION,
    CollectiveType,
    NodeType,
    add_attribute,
    messages,
)

_MICROSECONDS_PER_S = 1e6


class UnfoldedStep:
    """An unfolded step with everything that several ranks need to know of it."""

    def __init__(self, compilation: Compilation, *, own_attributes: bool) -> None:
        graph = compilation.graph
        self.graph = graph
        self.own_attributes = own_attributes
        self.rank_of = _rank_of_class(compilation)
        self.members = [members_of(graph, task) for task in range(graph.tasks)]
        self.types = collective_types(compilation, self.members).tolist()
        self.before = _predecessors(graph)
        self.order = _topological_order(graph, self.before)
        self.receivers = self._receivers()
        self.groups = self._groups()
        self.tags = self._tags()
        self.durations_us = _whole_microseconds(graph, self.order)
        self.streams = _streams_by_class(graph)
        # Lists, as a million single reads of arrays would take long.
        self.stream_offsets = graph.stream_offsets.tolist()
        self.stream_ids = graph.stream_ids.tolist()
        self.class_of = graph.stream_class.tolist()
        self.kinds = [TaskKind(kind) for kind in graph.kind.tolist()]
        self.link_traffic = graph.link_traffic_bytes.tolist()
        self.amounts = list(
            zip(graph.flop.tolist(), graph.memory_traffic_bytes.tolist(), strict=True)
        )
        self.columns = OwnColumns(graph)
        self.names = [graph.names[index] for index in graph.name_ids.tolist()]

    def own_streams(self, task: int, rank_class: int) -> list[int]:
        """Return the streams of one class that a task occupies."""
        first, last = self.stream_offsets[task], self.stream_offsets[task + 1]
        return [s for s in self.stream_ids[first:last] if self.class_of[s] == rank_class]

    def _receivers(self) -> dict[int, tuple[int, ...]]:
        """Return transfer → class that it goes to; none if nothing waits for it elsewhere.

        It is a class that all that waits has in common. Where a collective waits, these are its
        members; then the stream tells, as it leads to one peer, and last the place in the row of
        senders.
        """
        graph = self.graph
        offsets, successors = graph.successor_offsets, graph.successors
        waiting: dict[int, set[int]] = {}
        by_line: dict[int, set[int]] = {}
        for task in np.flatnonzero(graph.kind == TaskKind.TRANSFER).tolist():
            own = set(self.members[task])
            after = [
                self.members[t] for t in successors[offsets[task] : offsets[task + 1]].tolist()
            ]
            elsewhere = [set(classes) for classes in after if not own & set(classes)]
            if elsewhere:
                waiting[task] = set.intersection(*elsewhere)
                if not waiting[task]:
                    raise SimulationError(
                        f"task {task} '{graph.names[graph.name_ids[task]]}' is a transfer that "
                        "several ranks wait for, expected one: a send has one receive"
                    )
                line = int(graph.stream_ids[graph.stream_offsets[task]])
                by_line[line] = by_line.get(line, waiting[task]) & waiting[task]
        rows: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for line, classes in by_line.items():
            rows[tuple(sorted(classes))].append(line)
        found: dict[int, tuple[int, ...]] = {}
        for task, classes in waiting.items():
            line = int(graph.stream_ids[graph.stream_offsets[task]])
            shared = tuple(sorted(by_line[line]))
            row = sorted(rows[shared])
            if not shared:
                found[task] = (min(classes),)
            else:
                found[task] = (shared[row.index(line) if len(row) == len(shared) else 0],)
        return found

    def _groups(self) -> dict[tuple[int, ...], int]:
        """Return the process groups and their numbers, from 1; all ranks together are 0."""
        found: dict[tuple[int, ...], int] = {}
        ranks = len(self.rank_of)
        for task in self.order:
            if self.types[task] >= 0:
                group = tuple(sorted(self.rank_of[c] for c in self.members[task]))
                if group not in found:
                    found[group] = 0 if len(group) == ranks else 1 + sum(map(bool, found.values()))
        return found

    def _tags(self) -> dict[tuple[int, int], int]:
        """Return (transfer, receiver) → how many messages went that way before it."""
        sent: dict[tuple[int, int], int] = defaultdict(int)
        found = {}
        for task in self.order:
            for receiver in self.receivers.get(task, ()):
                way = self.members[task][0], receiver
                found[task, receiver] = sent[way]
                sent[way] += 1
        return found


def _rank_of_class(compilation: Compilation) -> list[int]:
    """Return the rank of each class of an unfolded graph: stage by stage, ranks ascending."""
    topology = compilation.topology
    stages = topology.mesh.stages
    return [int(rank) for stage in range(stages) for rank in topology.stage_ranks(stage)]


def _predecessors(graph: ExecutionGraph) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in range(graph.tasks)]
    earlier = np.repeat(np.arange(graph.tasks), np.diff(graph.successor_offsets)).tolist()
    for first, then in zip(earlier, graph.successors.tolist(), strict=True):
        before[then].append(first)
    return before


def _topological_order(graph: ExecutionGraph, before: Sequence[Sequence[int]]) -> list[int]:
    """Return the tasks so that each follows what it waits for, lowest number first otherwise."""
    waits = [len(earlier) for earlier in before]
    offsets, successors = graph.successor_offsets.tolist(), graph.successors.tolist()
    chained = _next_on_streams(graph)
    for tasks in chained:
        for task in tasks:
            waits[task] += 1
    ready = [task for task, count in enumerate(waits) if not count]
    order = []
    while ready:
        task = heapq.heappop(ready)
        order.append(task)
        for then in (*successors[offsets[task] : offsets[task + 1]], *chained[task]):
            waits[then] -= 1
            if not waits[then]:
                heapq.heappush(ready, then)
    if len(order) < graph.tasks:
        raise SimulationError(
            f"deadlock: {graph.tasks - len(order)} of {graph.tasks} tasks wait for each other; "
            "`wattree simulate` names them"
        )
    return order


def _next_on_streams(graph: ExecutionGraph) -> list[list[int]]:
    """Return for each task those that follow it on its streams."""
    chained: list[list[int]] = [[] for _ in range(graph.tasks)]
    last: dict[int, int] = {}
    tasks = np.repeat(np.arange(graph.tasks), np.diff(graph.stream_offsets)).tolist()
    for task, stream in zip(tasks, graph.stream_ids.tolist(), strict=True):
        if stream in last:
            chained[last[stream]].append(task)
        last[stream] = task
    return chained


def _whole_microseconds(graph: ExecutionGraph, order: Sequence[int]) -> list[int]:
    """Round the time of each task so that the sums along its streams stay right.

    The schema counts whole microseconds, and many tasks last only a few: rounded one by one, a
    stream of them would be off by percents. The rest of each rounding is carried on instead.
    """
    alone_us = ((graph.latency_s + graph.work_s) * _MICROSECONDS_PER_S).tolist()
    offsets, streams = graph.stream_offsets.tolist(), graph.stream_ids.tolist()
    carried: dict[int, float] = defaultdict(float)
    rounded = [0] * graph.tasks
    for task in order:
        own = streams[offsets[task] : offsets[task + 1]]
        exact = alone_us[task] + (carried[own[0]] if own else 0.0)
        rounded[task] = max(round(exact), 0)
        for stream in own:
            carried[stream] = exact - rounded[task]
    return rounded


def _streams_by_class(graph: ExecutionGraph) -> dict[int, int]:
    """Return stream → its number within its class."""
    numbers: dict[int, int] = {}
    seen: dict[int, int] = defaultdict(int)
    for stream, rank_class in enumerate(graph.stream_class.tolist()):
        numbers[stream] = seen[rank_class]
        seen[rank_class] += 1
    return numbers


#: A task on one rank, and whether it is there as the receive of a transfer.
Place = tuple[int, bool]


def places(step: UnfoldedStep) -> list[list[Place]]:
    """Return what each class does, in the order of `step.order`; a receive follows its send."""
    found: list[list[Place]] = [[] for _ in step.rank_of]
    for task in step.order:
        for rank_class in step.members[task]:
            found[rank_class].append((task, False))
        for rank_class in step.receivers.get(task, ()):
            found[rank_class].append((task, True))
    return found


def rank_messages(step: UnfoldedStep, rank_class: int, content: Sequence[Place]) -> Iterator[Any]:
    """Yield the metadata and the nodes of one rank."""
    schema = messages()
    metadata = schema.metadata(version=SCHEMA_VERSION)
    if step.own_attributes:
        add_own_metadata(metadata, step.graph, rank_class, ranks=len(step.rank_of))
        if step.rank_of[rank_class] == 0:
            add_links(metadata, step.graph)
    yield metadata
    # Numbers begin at 1: readers in proto3 cannot tell a zero from nothing.
    number = {task: index for index, (task, _) in enumerate(content, start=1)}
    last: dict[int, int] = {}
    for task, is_receive in content:
        node = schema.node(id=number[task], name=step.names[task])
        if is_receive:
            _fill_receive(node, step, task, rank_class)
        else:
            _fill(node, step, task, rank_class)
            node.data_deps.extend(_data_deps(step, task, number))
            _add_stream_order(node, step, task, rank_class, last)
        yield node


def _data_deps(step: UnfoldedStep, task: int, number: Mapping[int, int]) -> Iterator[int]:
    """Yield the nodes of this rank that the task waits for, each once."""
    for before in dict.fromkeys(step.before[task]):
        if before in number:
            yield number[before]
        elif not set(step.members[before]) & set(step.members[task]):
            # Of a collective's members one waits for it; that holds the others back, too.
            sent = step.receivers.get(before)
            if sent is None or not set(sent) & set(step.members[task]):
                raise SimulationError(
                    f"task {task} '{step.names[task]}' waits for task {before} "
                    f"'{step.names[before]}' of another rank without a message between them; "
                    "a trace by rank cannot say that"
                )


def _add_stream_order(
    node: Any, step: UnfoldedStep, task: int, rank_class: int, last: dict[int, int]
) -> None:
    """Let a node wait for the one before it on each of its streams."""
    waits: dict[int, None] = {}
    for stream in step.own_streams(task, rank_class):
        if stream in last:
            waits[last[stream]] = None
        last[stream] = node.id
    data = set(node.data_deps)
    node.ctrl_deps.extend(number for number in waits if number not in data)


def _fill(node: Any, step: UnfoldedStep, task: int, rank_class: int) -> None:
    """Fill a node that is no receive."""
    kind = step.kinds[task]
    node.duration_micros = step.durations_us[task]
    add_attribute(node, "is_cpu_op", "bool_val", kind is TaskKind.HOST)
    if kind is TaskKind.COLLECTIVE:
        _fill_collective(node, step, task)
    elif kind is TaskKind.TRANSFER:
        _fill_transfer(node, step, task)
    else:
        node.type = NodeType.COMP_NODE
        flop, traffic_bytes = step.amounts[task]
        add_attribute(node, "num_ops", "int64_val", round(flop))
        add_attribute(node, "tensor_size", "uint64_val", round(traffic_bytes))
    if step.own_attributes:
        own = [step.streams[stream] for stream in step.own_streams(task, rank_class)]
        is_first = step.rank_of[rank_class] == min(step.rank_of[c] for c in step.members[task])
        add_own_attributes(node, step.columns, task, own, is_first=is_first)


def _fill_collective(node: Any, step: UnfoldedStep, task: int) -> None:
    node.type = NodeType.COMM_COLL_NODE
    kind = CollectiveType(step.types[task])
    group = tuple(sorted(step.rank_of[c] for c in step.members[task]))
    size = chakra_size_bytes(kind, step.link_traffic[task], len(group))
    add_attribute(node, "comm_type", "int64_val", int(kind))
    add_attribute(node, "comm_size", "int64_val", size)
    add_attribute(node, "pg_name", "string_val", str(step.groups[group]))


def _fill_transfer(node: Any, step: UnfoldedStep, task: int) -> None:
    size = max(round(step.link_traffic[task]), 1)
    if receivers := step.receivers.get(task):
        node.type = NodeType.COMM_SEND_NODE
        add_attribute(node, "comm_dst", "int32_val", step.rank_of[receivers[0]])
        _add_message(node, step, task, receivers[0], size)
    else:  # a copy between device and host; no one else waits for it
        node.type = NodeType.MEM_STORE_NODE
        add_attribute(node, "tensor_size", "uint64_val", size)


def _fill_receive(node: Any, step: UnfoldedStep, task: int, rank_class: int) -> None:
    node.type = NodeType.COMM_RECV_NODE
    node.duration_micros = step.durations_us[task]
    add_attribute(node, "is_cpu_op", "bool_val", False)
    add_attribute(node, "comm_dst", "int32_val", step.rank_of[rank_class])
    size = max(round(step.link_traffic[task]), 1)
    _add_message(node, step, task, rank_class, size)


def _add_message(node: Any, step: UnfoldedStep, task: int, receiver: int, size: int) -> None:
    sender = step.members[task][0]
    add_attribute(node, "comm_src", "int32_val", step.rank_of[sender])
    add_attribute(node, "comm_tag", "int32_val", step.tags[task, receiver])
    add_attribute(node, "comm_size", "int64_val", size)
