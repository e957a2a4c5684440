"""Attributes of Wattree for task properties beyond the Chakra schema.

Other readers pass over them. With them a trace that Wattree wrote is executed exactly as the job
was; without them it is any Chakra trace. Writing and reading stand together: they are one format.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wattree.errors import JobError
from wattree.graph import ExecutionGraph, Phase, StageLabel, TaskKind
from wattree.graph.assembly import Assembly, Task
from wattree.interchange.matching import Matched, Unit
from wattree.interchange.reading import RankTrace, TraceNode
from wattree.interchange.schema import add_attribute

#: Raised whenever the meaning of an attribute below changes.
_FORMAT = 1
_TASK_INTEGERS, _TASK_NUMBERS = 7, 7
_WANTED = "expected what Wattree wrote; name a cluster (--cluster) to read the trace without it"


def add_own_metadata(message: Any, graph: ExecutionGraph, rank_class: int, *, ranks: int) -> None:
    """Add to a file's metadata what belongs to its rank; to the first file's also the links."""
    streams = np.flatnonzero(graph.stream_class == rank_class)
    add_attribute(message, "wattree_format", "int64_val", _FORMAT)
    add_attribute(message, "wattree_ranks", "int64_val", ranks)
    add_attribute(message, "wattree_rank_name", "string_val", graph.class_names[rank_class])
    kinds = graph.stream_kind[streams].tolist()
    add_attribute(message, "wattree_stream_kinds", "int64_list", kinds)
    add_attribute(message, "wattree_categories", "string_list", list(graph.category_names))
    static = [graph.static_bytes[rank_class], *graph.static_by_category[rank_class]]
    add_attribute(message, "wattree_resident_bytes", "double_list", [float(b) for b in static])


def add_links(message: Any, graph: ExecutionGraph) -> None:
    """Add the links and the mutual slowdown, which all ranks share."""
    add_attribute(message, "wattree_link_names", "string_list", list(graph.link_names))
    bandwidths = graph.link_bandwidth_bytes_per_s.tolist()
    add_attribute(message, "wattree_link_bytes_per_s", "double_list", bandwidths)
    rates = [graph.compute_rate_while_communicating, graph.communication_rate_while_computing]
    add_attribute(message, "wattree_overlap_rates", "double_list", rates)


class OwnColumns:
    """The columns of a graph as Python lists: a million single reads of arrays would take long."""

    def __init__(self, graph: ExecutionGraph) -> None:
        integers = ("kind", "overlaps", "phase", "stage", "micro_batch", "memory_category")
        numbers = (
            *("latency_s", "work_s", "alloc_bytes", "free_bytes"),
            *("flop", "memory_traffic_bytes", "link_traffic_bytes"),
        )
        self.integers = [getattr(graph, name).astype(np.int64).tolist() for name in integers]
        self.numbers = [getattr(graph, name).tolist() for name in numbers]
        self.flow_offsets = graph.flow_offsets.tolist()
        self.flow_links = graph.flow_links.tolist()
        self.flow_rates = graph.flow_bytes_per_s.tolist()


def add_own_attributes(
    message: Any, columns: OwnColumns, task: int, streams: Sequence[int], *, is_first: bool
) -> None:
    """Add to a node what is known of its task.

    Args:
        streams: That it occupies, numbered within its rank.
        is_first: It is the task's node of lowest rank, which carries the flows.
    """
    integers = [task, *(column[task] for column in columns.integers)]
    add_attribute(message, "wattree_task", "int64_list", integers)
    add_attribute(message, "wattree_streams", "int64_list", list(streams))
    numbers = [column[task] for column in columns.numbers]
    add_attribute(message, "wattree_costs", "double_list", numbers)
    flows = slice(columns.flow_offsets[task], columns.flow_offsets[task + 1])
    if is_first and flows.start < flows.stop:
        add_attribute(message, "wattree_links", "int64_list", columns.flow_links[flows])
        add_attribute(message, "wattree_link_rates", "double_list", columns.flow_rates[flows])


def is_own(traces: Sequence[RankTrace]) -> bool:
    """Return whether Wattree wrote all of the traces, its own attributes included."""
    return all(trace.metadata.get("wattree_format") == _FORMAT for trace in traces)


def own_assembly(traces: Sequence[RankTrace], found: Matched) -> Assembly:
    """Return the tasks of a trace that Wattree wrote, as they were.

    Raises:
        JobError: Files of different exports are mixed, or an attribute is damaged.
    """
    for trace in traces:
        if trace.metadata.get("wattree_ranks") != len(traces):
            raise JobError(
                trace.file,
                [
                    f"found one of {trace.metadata.get('wattree_ranks')!r} files, but "
                    f"{len(traces)} lie there; expected those of one export"
                ],
            )
    first_stream: list[int] = []
    kinds: list[int] = []
    classes: list[int] = []
    for trace in traces:
        own_kinds = _list(trace, "wattree_stream_kinds", int)
        first_stream.append(len(kinds))
        kinds += own_kinds
        classes += [trace.rank] * len(own_kinds)
    categories = _list(traces[0], "wattree_categories", str)
    static = np.array(
        [_list(t, "wattree_resident_bytes", float, 1 + len(categories)) for t in traces]
    )
    rates = _list(traces[0], "wattree_overlap_rates", float, 2)
    link_names = _list(traces[0], "wattree_link_names", str)
    numbered = sorted((_integers(unit)[0], index) for index, unit in enumerate(found.units))
    tasks = [
        _task(found.units[i], first_stream, kinds, len(categories), len(link_names))
        for _, i in numbered
    ]
    place = {index: position for position, (_, index) in enumerate(numbered)}
    return Assembly(
        tasks=tasks,
        before=[sorted(place[b] for b in found.units[index].before) for _, index in numbered],
        stream_kinds=kinds,
        stream_ranks=classes,
        rank_names=[str(trace.metadata.get("wattree_rank_name", "")) for trace in traces],
        link_names=link_names,
        link_bytes_per_s=_list(traces[0], "wattree_link_bytes_per_s", float, len(link_names)),
        compute_rate=rates[0],
        communication_rate=rates[1],
        categories=categories,
        static_bytes=static[:, 0],
        static_by_category=static[:, 1:],
    )


def _task(
    unit: Unit,
    first_stream: Sequence[int],
    stream_kinds: Sequence[int],
    categories: int,
    link_count: int,
) -> Task:
    node = unit.nodes[0]
    _, kind, overlaps, phase, stage, micro_batch, category = _integers(unit)
    for name, number, count in (
        ("kind", kind, len(TaskKind)),
        ("phase", phase, len(Phase)),
        ("stage", stage, len(StageLabel)),
        ("category", category, categories),
    ):
        if not 0 <= number < count:
            node.refuse("wattree_task", f"found {name} {number}", f"expected 0 to {count - 1}")
    costs = _node_list(node, "wattree_costs", float, _TASK_NUMBERS)
    if not all(0 <= number < math.inf for number in costs):
        node.refuse("wattree_costs", f"found {costs}", "expected finite numbers from 0")
    latency_s, work_s, alloc, free, flop, memory_traffic, link_traffic = costs
    streams = []
    for member in unit.nodes:
        if member.rank in unit.ranks:
            first = first_stream[member.rank]
            own = _node_list(member, "wattree_streams", int)
            if own and not 0 <= min(own) <= max(own) < len(stream_kinds) - first:
                member.refuse("wattree_streams", f"found {own}", "expected streams of the rank")
            streams += [first + local for local in own]
    links: list[int] = []
    rates: list[float] = []
    if node.has("wattree_links"):
        links = _node_list(node, "wattree_links", int)
        rates = _node_list(node, "wattree_link_rates", float, len(links))
        if links and not 0 <= min(links) <= max(links) < link_count:
            node.refuse("wattree_links", f"found {links}", f"expected 0 to {link_count - 1}")
        if not all(0 <= rate < math.inf for rate in rates):
            node.refuse("wattree_link_rates", f"found {rates}", "expected finite rates from 0 B/s")
    return Task(
        name=node.name,
        kind=kind,
        latency_s=latency_s,
        work_s=work_s,
        streams=tuple(sorted(streams)),
        flows=tuple(zip(links, rates, strict=True)),
        overlaps=bool(overlaps),
        phase=phase,
        stage=stage,
        micro_batch=micro_batch,
        category=category,
        alloc_bytes=alloc,
        free_bytes=free,
        flop=flop,
        memory_traffic_bytes=memory_traffic,
        link_traffic_bytes=link_traffic,
    )


def _integers(unit: Unit) -> list[int]:
    return _node_list(unit.nodes[0], "wattree_task", int, _TASK_INTEGERS)


def _node_list(node: TraceNode, name: str, kind: type, length: int = -1) -> list[Any]:
    value = node.attributes.get(name)
    if not _is_list(value, kind, length):
        node.refuse(name, _found(value), _WANTED)
    assert isinstance(value, list)
    return value


def _list(trace: RankTrace, name: str, kind: type, length: int = -1) -> list[Any]:
    value = trace.metadata.get(name)
    if not _is_list(value, kind, length):
        raise JobError(trace.file, [f"metadata: {name}: {_found(value)}, {_WANTED}"])
    assert isinstance(value, list)
    return value


def _is_list(value: object, kind: type, length: int) -> bool:
    is_list = isinstance(value, list) and all(isinstance(item, kind) for item in value)
    return is_list and length in {-1, len(value)}  # type: ignore[arg-type]


def _found(value: object) -> str:
    return "is missing" if value is None else f"found {str(value)[:60]}"
