"""Nodes of all ranks → units: events that start and end together on one or more ranks.

The k-th collective of a group on one rank is the k-th of that group on every other, in the order
of node numbers; a send meets the receive with its source, destination and tag, the k-th the k-th.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from wattree.errors import JobError
from wattree.interchange.reading import RankTrace, TraceNode
from wattree.interchange.schema import CollectiveType, NodeType


class UnitKind(Enum):
    """Kinds of units, as far as timing is concerned."""

    COMPUTE = auto()
    HOST = auto()
    COLLECTIVE = auto()
    TRANSFER = auto()
    COPY = auto()
    NOTHING = auto()  # a receive that waits for more than its message, metadata


@dataclass(slots=True)
class Unit:
    """Nodes that are one event.

    Attributes:
        nodes: Its nodes by rank; of a transfer the send, then the receive if that waits for
            nothing else.
        size_bytes: What it moves, by the convention of its kind. [B]
        collective: Kind of a collective.
        receiver: Rank that a transfer goes to; -1 for all else.
        before: Units that end before it starts.
    """

    kind: UnitKind
    nodes: list[TraceNode]
    size_bytes: int = 0
    collective: CollectiveType | None = None
    receiver: int = -1
    before: set[int] = field(default_factory=set)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks whose streams it occupies: of a transfer the sender."""
        if self.kind is UnitKind.TRANSFER:
            return (self.nodes[0].rank,)
        return tuple(node.rank for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Matched:
    """All units of a trace.

    Attributes:
        units: In no particular order.
        ranks: Ranks of the job.
    """

    units: list[Unit]
    ranks: int


def matched(
    traces: Sequence[RankTrace],
    groups: Mapping[str, tuple[int, ...]],
    *,
    dims: Sequence[int] = (),
    control: bool = True,
) -> Matched:
    """Return the units of a trace and what each waits for.

    Args:
        groups: Process groups by name, from the group file.
        dims: Ranks along each dimension of the network, innermost first, for `involved_dim`.
        control: Control dependencies count, too.

    Raises:
        JobError: A collective lacks members, a send its receive, or their sizes differ.
    """
    units: list[Unit] = []
    where: list[dict[int, int]] = [{} for _ in traces]
    by_call: dict[tuple[tuple[int, ...], int], int] = {}
    calls: dict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
    sends: dict[tuple[int, int, int], list[TraceNode]] = defaultdict(list)
    receives: dict[tuple[int, int, int], list[TraceNode]] = defaultdict(list)
    finder = _Groups(traces, groups, dims)
    for trace in traces:
        for node in trace.nodes:
            if node.type is NodeType.COMM_SEND_NODE:
                sends[_ends(node, len(traces), is_send=True)].append(node)
            elif node.type is NodeType.COMM_RECV_NODE:
                receives[_ends(node, len(traces), is_send=False)].append(node)
            elif node.type is NodeType.COMM_COLL_NODE:
                members = finder.members(node)
                call = members, calls[node.rank, members]
                calls[node.rank, members] += 1
                if call not in by_call:
                    by_call[call] = len(units)
                    units.append(_collective(node))
                else:
                    _join(units[by_call[call]], node)
                where[node.rank][node.id] = by_call[call]
            else:
                where[node.rank][node.id] = len(units)
                units.append(_alone(node))
    for (members, _), index in by_call.items():
        _check_members(units[index], members)
    for unit, node in _messages(sends, receives):
        _place(unit, node, units, where)
    _connect(units, where, control=control)
    return Matched(units, len(traces))


class _Groups:
    """Which ranks take part in a collective."""

    def __init__(
        self,
        traces: Sequence[RankTrace],
        groups: Mapping[str, tuple[int, ...]],
        dims: Sequence[int],
    ) -> None:
        self.everyone = tuple(range(len(traces)))
        self.groups = groups
        self.declared = [trace.groups for trace in traces]
        self.users = _users(traces)
        self.dims = tuple(dims)
        if dims and int(np.prod(dims)) != len(traces):
            raise JobError(
                traces[0].file,
                [f"found {len(traces)} ranks, but dims {'x'.join(map(str, dims))} has another "
                 "number of places; expected as many"],
            )  # fmt: skip

    def members(self, node: TraceNode) -> tuple[int, ...]:
        name = str(node.attributes.get("pg_name", ""))
        if name in self.groups:
            members = self.groups[name]
        elif name in self.declared[node.rank]:
            members = self.declared[node.rank][name]
        elif name in {"", "0"}:  # ASTRA-sim's names of the group of all
            members = self._along_dims(node)
        else:
            members = self.users[name]
        found = f"found group '{name}' of ranks {_shown(members)}"
        if node.rank not in members:
            node.refuse("pg_name", found, f"which does not hold rank {node.rank}")
        if members[0] < 0 or members[-1] >= len(self.everyone):
            limit = len(self.everyone)
            node.refuse("pg_name", found, f"expected ranks below {limit}, the number of files")
        return members

    def _along_dims(self, node: TraceNode) -> tuple[int, ...]:
        """Return the ranks that share the node's place in the dimensions that take no part."""
        involved = node.attributes.get("involved_dim")
        if involved is None or (isinstance(involved, list) and all(involved)):
            return self.everyone
        if not isinstance(involved, list):
            node.refuse(
                "involved_dim", f"found {str(involved)[:40]!r}", "expected a list of truths"
            )
        if len(involved) < len(self.dims) or not self.dims:
            node.refuse(
                "involved_dim",
                f"found {involved}",
                "expected the shape of the network for it (--dims, innermost first) or a pg_name",
            )
        places = np.arange(len(self.everyone)).reshape(self.dims[::-1])
        index = np.unravel_index(node.rank, places.shape)
        chosen = tuple(
            slice(None) if taking_part else int(at)
            for taking_part, at in zip(involved[: len(self.dims)][::-1], index, strict=True)
        )
        return tuple(int(rank) for rank in np.sort(places[chosen].ravel()))


def _users(traces: Sequence[RankTrace]) -> dict[str, tuple[int, ...]]:
    """Return the ranks that name each group: its members, where no file says which."""
    found: dict[str, set[int]] = defaultdict(set)
    for trace in traces:
        for node in trace.nodes:
            if node.type is NodeType.COMM_COLL_NODE and node.has("pg_name"):
                found[str(node.attributes["pg_name"])].add(trace.rank)
    return {name: tuple(sorted(ranks)) for name, ranks in found.items()}


def _shown(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")


def _collective(node: TraceNode) -> Unit:
    if not node.has("comm_type"):
        node.refuse("comm_type", "found no attribute 'comm_type'", "expected a collective's number")
    number = node.integer("comm_type")
    if number not in CollectiveType.__members__.values():
        known = ", ".join(f"{kind.value} {kind.name}" for kind in CollectiveType)
        node.refuse("comm_type", f"found {number}", f"expected one of {known}")
    kind = CollectiveType(number)
    size = 0 if kind is CollectiveType.BARRIER else node.size_bytes()
    return Unit(UnitKind.COLLECTIVE, [node], size_bytes=size, collective=kind)


def _join(unit: Unit, node: TraceNode) -> None:
    """Add a member to a collective after comparing what both say of it."""
    other, first = _collective(node), unit.nodes[0]
    if other.collective is not unit.collective:
        node.refuse(
            "comm_type",
            f"found {_kind_name(other)}",
            f"expected {_kind_name(unit)} as {first.label} has, whose group and place are the same",
        )
    if other.size_bytes != unit.size_bytes:
        # Uneven exchanges are real; the largest part decides the time of each.
        if unit.collective is not CollectiveType.ALL_TO_ALL:
            node.refuse(
                "comm_size",
                f"found {other.size_bytes} B",
                f"expected {unit.size_bytes} B as {first.label} has, whose group and place are the "
                "same",
            )
        unit.size_bytes = max(unit.size_bytes, other.size_bytes)
    unit.nodes.append(node)


def _kind_name(unit: Unit) -> str:
    return "" if unit.collective is None else unit.collective.name


def _check_members(unit: Unit, members: tuple[int, ...]) -> None:
    if missing := sorted(set(members) - set(unit.ranks)):
        node = unit.nodes[0]
        node.refuse(
            "pg_name",
            f"found {_kind_name(unit)} over ranks {_shown(members)}",
            f"but rank {missing[0]} has no collective to match it: it would wait for ever",
        )


def _alone(node: TraceNode) -> Unit:
    if node.type in {NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE}:
        return Unit(UnitKind.COPY, [node], size_bytes=node.size_bytes())
    if node.type is NodeType.COMP_NODE:
        return Unit(UnitKind.HOST if node.is_on_host else UnitKind.COMPUTE, [node])
    return Unit(UnitKind.NOTHING, [node])  # metadata; ASTRA-sim passes over invalid nodes, too


def _ends(node: TraceNode, ranks: int, *, is_send: bool) -> tuple[int, int, int]:
    """Return source, destination and tag of a message, checked."""
    source = node.integer("comm_src", node.rank if is_send else None)
    target = node.integer("comm_dst", None if is_send else node.rank)
    name, own, other = ("comm_src", source, target) if is_send else ("comm_dst", target, source)
    if own != node.rank:
        node.refuse(name, f"found {own}", f"expected {node.rank}, the rank of the file")
    if not 0 <= other < ranks or other == node.rank:
        far = "comm_dst" if is_send else "comm_src"
        node.refuse(far, f"found {other}", f"expected another rank below {ranks}")
    return source, target, node.integer("comm_tag", 0)


def _messages(
    sends: Mapping[tuple[int, int, int], list[TraceNode]],
    receives: Mapping[tuple[int, int, int], list[TraceNode]],
) -> Iterator[tuple[TraceNode, TraceNode]]:
    """Yield each send with its receive."""
    for ends in {**sends, **receives}:
        out, back = sends.get(ends, []), receives.get(ends, [])
        if len(out) != len(back):
            lonely = (out + back)[0] if not out or not back else max(out, back, key=len)[
                min(len(out), len(back))
            ]  # fmt: skip
            what = "receive" if lonely.type is NodeType.COMM_SEND_NODE else "send"
            lonely.refuse(
                "comm_tag",
                f"found a message {ends[0]} → {ends[1]} with tag {ends[2]}",
                f"but {len(out)} sends and {len(back)} receives of it: no {what} matches",
            )
        yield from zip(out, back, strict=True)


def _place(
    send: TraceNode, receive: TraceNode, units: list[Unit], where: list[dict[int, int]]
) -> None:
    """Add a message: one unit, or two where the receive waits for more than the message."""
    size = send.size_bytes()
    known = receive.has("comm_size") or receive.has("tensor_size")
    if known and receive.size_bytes() != size:
        receive.refuse(
            "comm_size",
            f"found {receive.size_bytes()} B",
            f"expected {size} B as {send.label} sends",
        )
    where[send.rank][send.id] = where[receive.rank][receive.id] = len(units)
    units.append(Unit(UnitKind.TRANSFER, [send], size_bytes=size, receiver=receive.rank))
    if receive.data_deps or receive.ctrl_deps:
        where[receive.rank][receive.id] = len(units)
        units.append(Unit(UnitKind.NOTHING, [receive], before={len(units) - 1}))
    else:
        units[-1].nodes.append(receive)


def _connect(units: list[Unit], where: list[dict[int, int]], *, control: bool) -> None:
    for unit in units:
        for node in unit.nodes:
            own = where[node.rank]
            unit.before.update(own[dep] for dep in node.data_deps)
            if control:
                unit.before.update(own[dep] for dep in node.ctrl_deps)
