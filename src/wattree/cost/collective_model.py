"""What every collective of a job costs: closed form, played on the node's links, or as asked for.

Three ways to the same figures, for arrays of groups at once:

- *closed form* (`collective.port_loads`): `auto` on nodes with a switch, where any pair of devices
  has its ports to itself. One latency and bandwidth for each kind of device, calibrated.
- *closed form, links played*: `auto` on any other node. What goes through a port is stretched by
  how much longer the busiest link of the node takes, all groups of the axes at work.
- *messages*: an algorithm that the job names, or NCCL's choice by size and shape. Loads and steps
  are those of its messages; ports and adapters reach the share of their rate that is calibrated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.cost.algorithms import Group, Protocol, nccl_system
from wattree.cost.algorithms.choose import OURS
from wattree.cost.algorithms.layout import Layout
from wattree.cost.algorithms.profile import Profile, profile_of, shifted_stretch
from wattree.cost.algorithms.protocols import base_latency_s, hop_latencies_s
from wattree.cost.algorithms.tuning import NcclSystem, nccl_fastest
from wattree.cost.algorithms.wiring import Wiring, wiring_of
from wattree.cost.collective import (
    GroupShape,
    LinkRates,
    PortLoads,
    collective_latency_s,
    port_loads,
    volume_factor,
)
from wattree.cost.requests import AUTO_COLLECTIVES, NCCL, CollectiveRequests
from wattree.errors import CostError, StrategyError
from wattree.hardware import Cluster

__all__ = ["CollectiveModel", "Played"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: What an algorithm that cannot serve a group costs where many strategies are weighed: nobody's
#: choice, and finite, so that no other figure is spoilt. [s]
_IMPOSSIBLE_S = 1e9


class Played(NamedTuple):
    """What one collective takes; every array `(k,)`.

    Attributes:
        latency_s: Of its steps, without bytes. [s]
        work_s: Of its bytes, where every group of the mesh does the same at once. [s]
        loads: Through the links of one device. [B]
        in_turn: Whether ports and network work one after the other.
    """

    latency_s: Floats
    work_s: Floats
    loads: PortLoads
    in_turn: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveModel:
    """The collectives of one job.

    Attributes:
        cluster: Where its groups are.
        requests: What the job asks for.
        refuses: Whether a group that an algorithm cannot serve is an error; otherwise it costs
            more than anything else.
    """

    cluster: Cluster
    requests: CollectiveRequests = field(default_factory=CollectiveRequests)
    refuses: bool = False
    _wiring: Wiring = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_wiring", wiring_of(self.cluster))

    def looks_inside(self, kind: str) -> bool:
        """Return whether costs of a kind depend on more than how many ranks are where."""
        return self.requests.of(kind).algorithm != AUTO_COLLECTIVES or not self._wiring.is_switch

    def looks_at_any(self) -> bool:
        """Return whether that is so for any kind."""
        return not self._wiring.is_switch or any(
            request.algorithm != AUTO_COLLECTIVES for request in self.requests.by_kind.values()
        )

    def played(
        self,
        kind: str,
        size_bytes: Floats,
        group: GroupShape,
        links: LinkRates,
        *,
        copies: float = 1.0,
    ) -> Played:
        """Return what a collective takes.

        Args:
            kind: One of `COMPILED_KINDS`.
            size_bytes: As nccl-tests counts it, `(k,)`. [B]
            group: Where its ranks sit.
            links: What links reach.
            copies: Experts of a token, in exchanges of tokens.

        Raises:
            StrategyError: An algorithm that was asked for cannot serve a group.
        """
        closed = self._closed(kind, size_bytes, group, links, copies)
        if not self.looks_inside(kind) or not group.spans:
            return closed
        asked = self.requests.of(kind).algorithm != AUTO_COLLECTIVES
        result = Played(
            closed.latency_s.copy(),
            closed.work_s.copy(),
            PortLoads(
                scale_up=closed.loads.scale_up.copy(),
                adapter=closed.loads.adapter.copy(),
                uplink=closed.loads.uplink.copy(),
            ),
            np.zeros(len(size_bytes), dtype=bool),
        )
        for layout, chosen in self._layouts(group):
            if layout.ranks <= 1:
                continue
            size = size_bytes[chosen]
            before = _taken(closed, chosen)
            if asked:
                part = self._asked(kind, size, layout, links, closed=before, routed=copies > 1)
            else:
                part = self._on_links(kind, size, layout, links, closed=before)
            _put(result, chosen, part)
        return result

    def transfer_stretch(self, distance: Floats, filled: Floats) -> Floats:
        """Return how much longer messages inside a domain take than through a port alone, `(k,)`.

        Args:
            distance: Devices from each sender to its receiver, `(k,)`; all send that far at once.
            filled: Devices of a domain that the job uses, `(k,)`.
        """
        stretch = np.ones(len(distance))
        if self._wiring.is_switch:
            return stretch
        pairs = np.stack([np.abs(distance), filled]).astype(np.int64)
        distinct, number = np.unique(pairs, axis=1, return_inverse=True)
        for index, (far, used) in enumerate(distinct.T.tolist()):
            if 0 < far < used:
                stretch[number.ravel() == index] = shifted_stretch(far, used, self._wiring)
        return stretch

    def _layouts(self, group: GroupShape) -> Iterator[tuple[Layout, Integers]]:
        """Yield each distinct layout, and which of the groups have it."""
        assert group.filled is not None
        columns = [column for span in group.spans for column in span]
        rows = np.stack([*columns, group.filled]).astype(np.int64).T
        distinct, number = np.unique(rows, axis=0, return_inverse=True)
        order = np.argsort(number.ravel(), kind="stable")
        bounds = np.flatnonzero(np.diff(number.ravel()[order])) + 1
        for row, chosen in zip(distinct.tolist(), np.split(order, bounds), strict=True):
            pairs = sorted(
                (stride, degree) for degree, stride in zip(row[0:-1:2], row[1:-1:2], strict=True)
            )
            spans = tuple((degree, stride) for stride, degree in pairs if degree > 1)
            yield self._layout(spans, row[-1]), chosen

    def _layout(self, spans: tuple[tuple[int, int], ...], filled: int) -> Layout:
        cluster = self.cluster
        return Layout(
            spans=_merged(spans),
            domain=cluster.domain_devices,
            leaf=cluster.node.devices * cluster.fabric.leaf_nodes,
            filled=filled,
        )

    def _closed(
        self, kind: str, size_bytes: Floats, group: GroupShape, links: LinkRates, copies: float
    ) -> Played:
        loads = port_loads(kind, size_bytes, group, links, copies=copies)
        work = np.maximum(
            loads.scale_up / links.scale_up_bytes_per_s, loads.adapter / links.adapter_bytes_per_s
        )
        work = np.maximum(work, loads.uplink / links.uplink_bytes_per_s)
        latency = collective_latency_s(kind, group, links)
        return Played(latency, work, loads, np.zeros(len(work), dtype=bool))

    def _on_links(
        self, kind: str, size_bytes: Floats, layout: Layout, links: LinkRates, *, closed: Played
    ) -> Played:
        """Return the closed form, with ports stretched to what the node's links reach."""
        if kind == "all_to_all":
            profile = profile_of(kind, "direct", layout, self._wiring)
            scale_up = size_bytes * profile.scale_up
        else:
            # Every hop of a ring carries the same, so that two domains show what any number do.
            few = layout.with_domains(2)
            fills = self._wiring.torus is not None and few.torus_axes(self._wiring.torus)
            profile = profile_of(kind, "torus" if fills else "ring", few, self._wiring)
            ranks = np.array([float(few.ranks), float(layout.ranks)])
            played, whole = volume_factor(kind, ranks)
            scale_up = size_bytes * (profile.scale_up * whole / played)
            if kind == "all_reduce":
                advantage = links.scale_up_bytes_per_s / links.scale_up_reduce_bytes_per_s
                scale_up = scale_up * advantage
        loads = replace(closed.loads, scale_up=scale_up)
        work = _work_s(loads, links, in_turn=False)
        return Played(closed.latency_s, work, loads, closed.in_turn)

    # ------------------------------------------------------------------- as asked for

    def _asked(
        self,
        kind: str,
        size_bytes: Floats,
        layout: Layout,
        links: LinkRates,
        *,
        closed: Played,
        routed: bool,
    ) -> Played:
        """Return the costs by the algorithm asked for, or NCCL's choice."""
        result = closed
        parts: list[tuple[Integers, Played]] = []
        try:
            for algorithm, protocol, chosen in self._choices(kind, size_bytes, layout):
                profile = profile_of(kind, algorithm, layout, self._wiring)
                if kind == "all_reduce":
                    profile = self._as_calibrated(algorithm, profile, layout, links)
                loads = _loads(size_bytes[chosen], profile)
                if routed and algorithm in {"direct", "rail"}:
                    # Tokens cross to a domain once, whichever way they take inside.
                    loads = replace(
                        loads,
                        adapter=closed.loads.adapter[chosen],
                        uplink=closed.loads.uplink[chosen],
                    )
                if protocol is not None:
                    loads = _with_flags(loads, protocol)
                latency_s = self._latency_s(algorithm, protocol, profile)
                parts.append(
                    (
                        chosen,
                        Played(
                            np.full(len(chosen), latency_s),
                            _work_s(loads, links, in_turn=profile.in_turn),
                            loads,
                            np.full(len(chosen), profile.in_turn),
                        ),
                    )
                )
        except CostError as error:
            if self.refuses:
                raise StrategyError({f"collectives.{kind}": str(error)}) from error
            return closed._replace(work_s=np.full(len(size_bytes), _IMPOSSIBLE_S))
        for chosen, part in parts:
            _put(result, chosen, part)
        return result

    def _choices(
        self, kind: str, size_bytes: Floats, layout: Layout
    ) -> Iterator[tuple[str, Protocol | None, Integers]]:
        """Yield algorithm, protocol and which sizes use them."""
        request = self.requests.of(kind)
        every = np.arange(len(size_bytes))
        if request.algorithm != NCCL:
            yield request.algorithm, request.protocol, every
            return
        offsets = layout.offsets
        group = Group(devices=offsets, node=offsets // layout.domain)
        if kind == "all_to_all":
            sizes = {len(each) for each in group.members()}
            rails = group.nodes > 1 and len(sizes) == 1 and sizes != {1}
            yield "rail" if rails else "direct", request.protocol or Protocol.SIMPLE, every
            return
        system = self._system(group, layout)
        allowed = [] if request.protocol is None else [request.protocol]
        keys, fastest = nccl_fastest(kind, size_bytes, system, protocols=allowed)
        for number in np.unique(fastest).tolist():
            name, protocol = keys[number]
            yield OURS.get(name, name), protocol, np.flatnonzero(fastest == number)

    def _system(self, group: Group, layout: Layout) -> NcclSystem:
        """Return the communicator as NCCL would find it: its search sees the node's links."""
        system = nccl_system(self.cluster, group)
        if self._wiring.is_switch:
            return system
        few = layout.with_domains(2)
        ring = profile_of("all_gather", "ring", few, self._wiring).scale_up
        volume = (few.ranks - 1.0) / few.ranks
        rate = system.inside_bytes_per_s * min(volume / max(ring, 1e-12), 1.0)
        return replace(system, inside_bytes_per_s=rate)

    def _as_calibrated(
        self, algorithm: str, profile: Profile, layout: Layout, links: LinkRates
    ) -> Profile:
        """Return an all-reduce's profile in bytes of the rate that gathers reach.

        What is measured of all-reduce is that of switches that add, where there are such.
        """
        scale_up = profile.scale_up
        advantage = links.scale_up_bytes_per_s / links.scale_up_reduce_bytes_per_s
        if algorithm == "nvls":
            scale_up = max(scale_up, 2.0 * (1.0 - 1.0 / self._inside(layout)) * advantage)
        elif not self._wiring.scale_up.in_network_reduction:
            scale_up *= advantage
        return replace(profile, scale_up=scale_up)

    def _inside(self, layout: Layout) -> float:
        return float(np.count_nonzero(layout.offsets < layout.domain))

    def _latency_s(self, algorithm: str, protocol: Protocol | None, profile: Profile) -> float:
        """Return the time of all steps: those of the links, or NCCL's figures. [s]"""
        if protocol is None:
            between = self.cluster.node.nic_latency_s + self.cluster.fabric.switch_latency_s
            return profile.steps_inside * profile.inside_s + profile.steps_between * between
        hops = hop_latencies_s(algorithm, protocol)
        steps = profile.steps_inside * hops[profile.hardware] + profile.steps_between * hops[2]
        return base_latency_s(algorithm, protocol) + float(steps)


def _merged(spans: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return spans, ascending in stride, with those that follow on one another as one."""
    merged: list[tuple[int, int]] = []
    for degree, stride in spans:
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0] * degree, merged[-1][1])
        else:
            merged.append((degree, stride))
    return tuple(merged)


def _work_s(loads: PortLoads, links: LinkRates, *, in_turn: bool) -> Floats:
    inside = loads.scale_up / links.scale_up_bytes_per_s
    between = np.maximum(
        loads.adapter / links.adapter_bytes_per_s, loads.uplink / links.uplink_bytes_per_s
    )
    return inside + between if in_turn else np.maximum(inside, between)


def _loads(size_bytes: Floats, profile: Profile) -> PortLoads:
    return PortLoads(
        scale_up=size_bytes * profile.scale_up,
        adapter=size_bytes * profile.adapter,
        uplink=size_bytes * profile.uplink,
    )


def _with_flags(loads: PortLoads, protocol: Protocol) -> PortLoads:
    """Return loads with what a protocol sends beside data."""
    data = protocol.bandwidth_fraction
    return PortLoads(
        scale_up=loads.scale_up / data, adapter=loads.adapter / data, uplink=loads.uplink / data
    )


def _taken(played: Played, chosen: Integers) -> Played:
    loads = played.loads
    return Played(
        played.latency_s[chosen],
        played.work_s[chosen],
        PortLoads(
            scale_up=loads.scale_up[chosen],
            adapter=loads.adapter[chosen],
            uplink=loads.uplink[chosen],
        ),
        played.in_turn[chosen],
    )


def _put(into: Played, chosen: Integers, part: Played) -> None:
    into.latency_s[chosen], into.work_s[chosen] = part.latency_s, part.work_s
    into.loads.scale_up[chosen] = part.loads.scale_up
    into.loads.adapter[chosen] = part.loads.adapter
    into.loads.uplink[chosen] = part.loads.uplink
    into.in_turn[chosen] = part.in_turn
