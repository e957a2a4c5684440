"""Trace files → nodes: attributes under any of their types, references checked, nothing matched.

Traces by others are read as ASTRA-sim's feeder reads them, and a little more generously: a number
may come as any integer type of the schema, text may hold a number, and what has a default there
has it here. What cannot be understood is refused with file, node and attribute.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from wattree.errors import JobError, JsonTextError
from wattree.interchange.files import TraceFiles, records
from wattree.interchange.schema import (
    Attribute,
    Messages,
    NodeType,
    attribute_value,
    messages,
)
from wattree.json_text import parsed_json

#: Nodes that are read at most, all ranks together: some 2.5 GB as objects, and a minute.
MOST_NODES = 1_000_000

#: Attributes that are kept; the rest of a node's (scopes, thread ids, schemas) says nothing here.
_STORED = frozenset(
    {
        *("is_cpu_op", "num_ops", "tensor_size", "comm_type", "comm_size", "comm_priority"),
        *("comm_src", "comm_dst", "comm_tag", "pg_name", "involved_dim", "runtime"),
    }
)
#: Attributes of our own begin so.
OWN_PREFIX = "wattree_"
_TRUE_WORDS = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One node of one rank.

    Attributes:
        id: Number within the rank's file.
        name: For people.
        data_deps, ctrl_deps: Nodes of the same rank that end before this one starts.
        duration_us: Recorded time; 0 if none was. [µs]
        attributes: What is known of it.
        file: For messages.
    """

    rank: int
    id: int
    name: str
    type: NodeType
    data_deps: tuple[int, ...]
    ctrl_deps: tuple[int, ...]
    duration_us: int
    attributes: Mapping[str, Attribute]
    file: str

    @property
    def label(self) -> str:
        """Where a message finds it: rank, number and name."""
        return f"node {self.id} '{self.name[:60]}' of rank {self.rank}"

    @property
    def is_on_host(self) -> bool:
        """Whether it runs on the host; ASTRA-sim's default is the device."""
        return bool(self.attributes.get("is_cpu_op", False))

    def has(self, name: str) -> bool:
        """Return whether it carries an attribute."""
        return name in self.attributes

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an attribute as a whole number.

        Raises:
            JobError: It is absent and has no default, or is no whole number.
        """
        if name not in self.attributes:
            if default is None:
                self.refuse(name, f"found no attribute '{name}'", "expected a whole number")
            return default
        value = self.attributes[name]
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value.strip()):
            return int(value)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if not isinstance(value, int):
            self.refuse(name, f"found {str(value)[:40]!r}", "expected a whole number")
        return int(value)

    def size_bytes(self) -> int:
        """Return what a communication or copy moves: `comm_size`, or `tensor_size` without it. [B]

        Raises:
            JobError: It has neither, or a negative one.
        """
        name = "comm_size" if self.has("comm_size") else "tensor_size"
        if not self.has(name):
            self.refuse("comm_size", "found no attribute 'comm_size'", "expected bytes")
        size = self.integer(name)
        if size < 0:
            self.refuse(name, f"found {size}", "expected bytes from 0")
        return size

    def refuse(self, attribute: str, found: str, expected: str) -> NoReturn:
        """Raise the error that names file, node and attribute."""
        raise JobError(self.file, [f"{self.label}: {attribute}: {found}, {expected}"])


@dataclass(frozen=True, slots=True)
class RankTrace:
    """What one file holds.

    Attributes:
        rank: Whose it is, by its name.
        file: For messages.
        metadata: Attributes of the whole file.
        nodes: By number, ascending.
        groups: Process groups that a PyTorch metadata node declares, by name.
    """

    rank: int
    file: str
    metadata: Mapping[str, Attribute]
    nodes: tuple[TraceNode, ...]
    groups: Mapping[str, tuple[int, ...]]


def read_traces(files: TraceFiles) -> list[RankTrace]:
    """Return the traces of all ranks.

    Raises:
        JobError: A file is truncated, no Chakra trace, or contradicts itself.
        MissingExtraError: Protobuf is not installed.
    """
    schema = messages()
    traces: list[RankTrace] = []
    count = 0
    for rank, path in enumerate(files.paths):
        trace = _read_trace(path, rank, schema, MOST_NODES - count)
        count += len(trace.nodes)
        traces.append(trace)
    if not count:
        raise JobError(str(files.paths[0]), ["found no node in it or in the other files"])
    return traces


def _read_trace(path: Path, rank: int, schema: Messages, most_nodes: int) -> RankTrace:
    found = records(path)
    metadata = _metadata(path, found, schema)
    nodes: dict[int, TraceNode] = {}
    groups: dict[str, tuple[int, ...]] = {}
    for record in found:
        message = schema.node()
        try:
            message.ParseFromString(record.content)
        except schema.decode_error as error:
            raise _not_chakra(path, record.at, "Node") from error
        node = _node(message, rank, str(path), record.at)
        if node.id in nodes:
            raise JobError(
                str(path), [f"byte {record.at}: found {node.label} a second time; expected it once"]
            )
        if node.type is NodeType.METADATA_NODE:
            groups.update(_declared_groups(message.inputs.values))
        nodes[node.id] = node
        if len(nodes) > most_nodes:
            raise JobError(
                str(path), [f"found more than {MOST_NODES:,} nodes by here, expected fewer"]
            )
    _check_references(nodes)
    ordered = tuple(nodes[number] for number in sorted(nodes))
    return RankTrace(rank, str(path), metadata, ordered, groups)


def _metadata(path: Path, found: Iterator[Any], schema: Messages) -> dict[str, Attribute]:
    record = next(found, None)
    if record is None:
        raise JobError(str(path), ["found an empty file, expected a Chakra trace"])
    message = schema.metadata()
    try:
        message.ParseFromString(record.content)
    except schema.decode_error as error:
        raise _not_chakra(path, 0, "GlobalMetadata") from error
    if len(schema.unknown_fields(message)):
        raise _not_chakra(path, 0, "GlobalMetadata")
    return {a.name: value for a in message.attr if (value := attribute_value(a)) is not None}


def _not_chakra(path: Path, at: int, what: str) -> JobError:
    return JobError(
        str(path), [f"byte {at}: found no {what} message of the Chakra schema; this is no trace"]
    )


def _node(message: Any, rank: int, file: str, at: int) -> TraceNode:
    if message.type not in NodeType.__members__.values():
        raise JobError(
            file,
            [
                f"byte {at}: node {message.id}: type: found {message.type}, expected one of "
                f"{', '.join(f'{kind.value} {kind.name}' for kind in NodeType)}"
            ],
        )
    attributes = {}
    for attribute in message.attr:
        if attribute.name in _STORED or attribute.name.startswith(OWN_PREFIX):
            value = attribute_value(attribute)
            if value is not None:
                attributes[attribute.name] = value
    host = attributes.get("is_cpu_op")
    if isinstance(host, str):
        attributes["is_cpu_op"] = _TRUE_WORDS.get(host.lower(), True)
    node = TraceNode(
        rank=rank,
        id=message.id,
        name=message.name,
        type=NodeType(message.type),
        data_deps=tuple(message.data_deps),
        ctrl_deps=tuple(message.ctrl_deps),
        duration_us=message.duration_micros,
        attributes=attributes,
        file=file,
    )
    if not node.duration_us and node.has("runtime"):  # where traces before schema 0.0.4 had it
        return _with_duration(node)
    return node


def _with_duration(node: TraceNode) -> TraceNode:
    """Return the node with its time from the attribute `runtime`."""
    runtime = node.integer("runtime")
    if runtime < 0:
        node.refuse("runtime", f"found {runtime}", "expected microseconds from 0")
    return replace(node, duration_us=runtime)


def _check_references(nodes: Mapping[int, TraceNode]) -> None:
    for node in nodes.values():
        for field, deps in (("data_deps", node.data_deps), ("ctrl_deps", node.ctrl_deps)):
            for dep in deps:
                if dep not in nodes:
                    node.refuse(field, f"found node {dep}", "which the file does not hold")
                if dep == node.id:
                    node.refuse(field, "found the node itself", "expected others only")


def _declared_groups(text: str) -> dict[str, tuple[int, ...]]:
    """Return the process groups that PyTorch writes into a metadata node's inputs, if any.

    They are a JSON list within a list of texts. An empty list of ranks means all, which is what an
    undeclared group means too.
    """
    start, end = text.find("["), text.rfind("}]")
    start = text.find("[{", max(start, 0))
    if start < 0 or end < start:
        return {}
    try:
        declared = parsed_json(text[start : end + 2])
    except JsonTextError:
        return {}
    return {
        str(group["pg_name"]): tuple(sorted(group["ranks"]))
        for group in declared
        if isinstance(group, dict) and "pg_name" in group and _is_ranks(group.get("ranks"))
    }


def _is_ranks(ranks: object) -> bool:
    return isinstance(ranks, Sequence) and bool(ranks) and all(type(rank) is int for rank in ranks)
