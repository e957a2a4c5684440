"""Cost of every collective of a job: closed form, node-link execution, or a requested algorithm.

Three methods for the same figures, for arrays of groups at once:

- *closed form* (`collective.port_loads`): `auto` on nodes with a switch, where any pair of devices
  has its ports to itself. One latency and bandwidth for each kind of device, calibrated.
- *closed form, links simulated*: `auto` on any other node. What goes through a port is stretched by
  how much longer the busiest link of the node takes, all groups of the axes at work.
- *messages*: an algorithm that the job names, or NCCL's choice by size and shape. Loads and steps
  are those of its messages; ports and adapters reach the share of their rate that is calibrated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.cost.algorithms import Protocol
from wattree.cost.algorithms.choose import OURS, nccl_system
from wattree.cost.algorithms.group import RankGroup
from wattree.cost.algorithms.layout import GroupLayout
from wattree.cost.algorithms.profile import (
    CollectiveProfile,
    profile_of,
    ring_stretch,
    shifted_stretch,
)
from wattree.cost.algorithms.protocols import base_latency_s, hop_latencies_s
from wattree.cost.algorithms.tuning import (
    NCCL_KEYS,
    NcclColumns,
    NcclSystem,
    nccl_columns,
    nccl_expected_s,
)
from wattree.cost.algorithms.wiring import Wiring, wiring_of
from wattree.cost.collective import (
    GroupShape,
    LinkRates,
    PortLoads,
    collective_latency_s,
    port_loads,
)
from wattree.cost.group_profiles import Layouts, ProfileRows, layouts_of, profile_rows
from wattree.cost.requests import AUTO_COLLECTIVES, NCCL, CollectiveRequests
from wattree.errors import StrategyError
from wattree.graph import UNROUTED, TokenRouting
from wattree.graph.volume import volume_factor
from wattree.hardware import Cluster

#: What an algorithm that cannot serve a group costs where many strategies are weighed: no one's
#: choice, and finite, so that no other figure is spoiled. [s]
_IMPOSSIBLE_S = 1e9


class CollectiveCost(NamedTuple):
    """Cost of one collective; every array has shape `(k,)`.

    Attributes:
        latency_s: Of its steps, without bytes. [s]
        work_s: Of its bytes, where every group of the mesh does the same at once. [s]
        loads: Through the links of one device. [B]
        in_turn: Whether ports and network work one after the other.
    """

    latency_s: Floats
    work_s: Floats
    loads: PortLoads
    in_turn: Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveModel:
    """The collectives of one job.

    Attributes:
        cluster: Where its groups are.
        requests: Settings of the job's collectives.
        refuses: Whether a group that an algorithm cannot serve is an error; otherwise it costs
            more than anything else.
    """

    cluster: Cluster
    requests: CollectiveRequests = field(default_factory=CollectiveRequests)
    refuses: bool = False
    _wiring: Wiring = field(init=False, repr=False, compare=False)
    _token: object = field(default_factory=object, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_wiring", wiring_of(self.cluster))

    def looks_inside(self, kind: str) -> bool:
        """Return whether the cost of a kind depends on more than the number of ranks per node."""
        return self.requests.of(kind).algorithm != AUTO_COLLECTIVES or not self._wiring.is_switch

    def looks_at_any(self) -> bool:
        """Return whether `looks_inside` holds for any kind."""
        return not self._wiring.is_switch or any(
            request.algorithm != AUTO_COLLECTIVES for request in self.requests.by_kind.values()
        )

    def cost(
        self,
        kind: str,
        size_bytes: Floats,
        group: GroupShape,
        links: LinkRates,
        *,
        routing: TokenRouting = UNROUTED,
    ) -> CollectiveCost:
        """Return the cost of collectives.

        Args:
            kind: One of `KINDS`.
            size_bytes: As nccl-tests counts it, `(k,)`. [B]
            group: Where its ranks sit.
            links: What links reach.
            routing: How tokens choose experts, in exchanges that send a token to a domain once.

        Raises:
            StrategyError: An algorithm that was asked for cannot serve a group.
        """
        closed = self._closed(kind, size_bytes, group, links, routing)
        if not self.looks_inside(kind) or not group.spans:
            return closed
        if self.requests.of(kind).algorithm == AUTO_COLLECTIVES:
            return self._on_links(kind, size_bytes, group, links, closed=closed)
        return self._asked(kind, size_bytes, group, links, closed=closed, routed=routing.copies > 1)

    def transfer_stretch(self, distance: Floats, filled: Floats) -> Floats:
        """Return the time of messages inside a domain over that through a port alone, `(k,)`.

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

    def neighbour_stretch(self, group: GroupShape) -> Floats:
        """Return the same for messages from each member of a group to the next, `(k,)`."""
        if self._wiring.is_switch or not group.spans:
            return np.ones_like(group.ranks)
        layouts = self._layouts(group)
        stretch = _known(
            group,
            (self._token, "neighbours"),
            lambda: np.array([ring_stretch(each, self._wiring) for each in layouts.distinct]),
        )
        return np.asarray(stretch[layouts.of_group])

    def _closed(
        self,
        kind: str,
        size_bytes: Floats,
        group: GroupShape,
        links: LinkRates,
        routing: TokenRouting,
    ) -> CollectiveCost:
        loads = port_loads(kind, size_bytes, group, links, routing=routing)
        work = np.maximum(
            loads.scale_up / links.scale_up_bytes_per_s, loads.adapter / links.adapter_bytes_per_s
        )
        work = np.maximum(work, loads.uplink / links.uplink_bytes_per_s)
        latency = collective_latency_s(kind, group, links)
        return CollectiveCost(latency, work, loads, np.zeros(len(work), dtype=bool))

    def _on_links(
        self,
        kind: str,
        size_bytes: Floats,
        group: GroupShape,
        links: LinkRates,
        *,
        closed: CollectiveCost,
    ) -> CollectiveCost:
        """Return the closed form, with port loads stretched by the node's links."""
        layouts = self._layouts(group)
        rows = self._rows(kind, AUTO_COLLECTIVES, group)
        scale_up = size_bytes * rows.scale_up[layouts.of_group]
        if kind == "all_reduce":
            scale_up = scale_up * _advantage(links)
        # The calibrated rates are those of the closed form, which counts what leaves a domain at
        # the port too; links of the same rate are never better than a switch.
        scale_up = np.maximum(scale_up, closed.loads.scale_up)
        loads = replace(closed.loads, scale_up=scale_up)
        work = _work_s(loads, links, in_turn=closed.in_turn)
        return CollectiveCost(closed.latency_s, work, loads, closed.in_turn)

    def _asked(
        self,
        kind: str,
        size_bytes: Floats,
        group: GroupShape,
        links: LinkRates,
        *,
        closed: CollectiveCost,
        routed: bool,
    ) -> CollectiveCost:
        """Return the costs of the requested algorithm, or of NCCL's choice."""
        latency, work = closed.latency_s.copy(), closed.work_s.copy()
        scale_up, adapter, uplink = (
            load.copy()
            for load in (closed.loads.scale_up, closed.loads.adapter, closed.loads.uplink)
        )
        in_turn = closed.in_turn.copy()
        of_group = self._layouts(group).of_group
        for algorithm, protocol, some in self._choices(kind, size_bytes, group):
            chosen = some[group.ranks[some] > 1]
            rows, at = self._rows(kind, algorithm, group), of_group[chosen]
            size = size_bytes[chosen] / (1.0 if protocol is None else protocol.bandwidth_fraction)
            ports = rows.scale_up[at]
            if kind == "all_reduce":
                ports = self._as_calibrated(algorithm, ports, group.inside[chosen], links)
            scale_up[chosen] = size * ports
            in_turn[chosen] = rows.in_turn[at]
            latency[chosen] = self._latency_s(algorithm, protocol, rows)[at]
            # Routed tokens cross to a domain once, whichever way they take inside.
            if not (routed and algorithm in {"direct", "rail"}):
                adapter[chosen], uplink[chosen] = size * rows.adapter[at], size * rows.uplink[at]
            loads = PortLoads(
                scale_up=scale_up[chosen], adapter=adapter[chosen], uplink=uplink[chosen]
            )
            work[chosen] = _work_s(loads, links, in_turn=in_turn[chosen])
            for number, fault in rows.faults.items():
                impossible = chosen[at == number]
                if len(impossible) and self.refuses:
                    raise StrategyError({f"collectives.{kind}": fault})
                work[impossible] = _IMPOSSIBLE_S
        loads = PortLoads(scale_up=scale_up, adapter=adapter, uplink=uplink)
        return CollectiveCost(latency, work, loads, in_turn)

    def _choices(
        self, kind: str, size_bytes: Floats, group: GroupShape
    ) -> Iterator[tuple[str, Protocol | None, Integers]]:
        """Yield algorithm, protocol and the groups that use them."""
        request = self.requests.of(kind)
        if request.algorithm != NCCL:
            yield request.algorithm, request.protocol, np.arange(len(size_bytes))
            return
        layouts = self._layouts(group)
        if kind == "all_to_all":
            rails = np.array([_has_rails(layout) for layout in layouts.distinct])[layouts.of_group]
            protocol = request.protocol or Protocol.SIMPLE
            yield "rail", protocol, np.flatnonzero(rails)
            yield "direct", protocol, np.flatnonzero(~rails)
            return
        columns = _known(group, (self._token, "nccl", kind), lambda: self._columns(kind, layouts))
        expected = nccl_expected_s(kind, size_bytes, columns.of(layouts.of_group))
        if request.protocol is not None:
            others = [protocol is not request.protocol for _, protocol in NCCL_KEYS]
            expected[others] = np.inf
        fastest = np.argmin(expected, axis=0)
        for number in np.flatnonzero(np.bincount(fastest)).tolist():
            name, protocol = NCCL_KEYS[number]
            yield OURS.get(name, name), protocol, np.flatnonzero(fastest == number)

    # --------------------------------------------------------------- looked up by layout

    def _layouts(self, group: GroupShape) -> Layouts:
        fabric = self.cluster.fabric
        spine = fabric.oversubscription > 1 and self.cluster.nodes > fabric.leaf_nodes
        alike = self._wiring.is_switch and not spine
        return _known(
            group,
            (self._token, "layouts"),
            lambda: layouts_of(group, self.cluster, alike_on_switches=alike),
        )

    def _rows(self, kind: str, algorithm: str, group: GroupShape) -> ProfileRows:
        """Return the profiles of the layouts of some groups."""
        profile = self._automatic if algorithm == AUTO_COLLECTIVES else self._named
        return _known(
            group,
            (self._token, kind, algorithm),
            lambda: profile_rows(
                self._layouts(group).distinct, lambda layout: profile(kind, algorithm, layout)
            ),
        )

    def _named(self, kind: str, algorithm: str, layout: GroupLayout) -> CollectiveProfile:
        return profile_of(kind, algorithm, layout, self._wiring)

    def _automatic(self, kind: str, _: str, layout: GroupLayout) -> CollectiveProfile:
        """Return the profile of the software's default on a node without a switch."""
        if kind == "all_to_all":
            return profile_of(kind, "direct", layout, self._wiring)
        # Every hop of a ring carries the same, so that two domains show what any number do, and a
        # gather what scatters and reductions do.
        few = layout.with_domains(2)
        torus = few.torus or self._wiring.torus
        names = ["ring", "torus"] if torus is not None and few.torus_axes(torus) else ["ring"]
        profiles = [profile_of("all_gather", name, few, self._wiring) for name in names]
        profile = min(reversed(profiles), key=lambda each: each.scale_up)
        cost = volume_factor("all_gather", few.ranks)
        whole = volume_factor(kind, layout.ranks)
        return replace(profile, scale_up=profile.scale_up * float(whole / cost))

    def _columns(self, kind: str, layouts: Layouts) -> NcclColumns:
        return nccl_columns(kind, [self._system(layout) for layout in layouts.distinct])

    def _system(self, layout: GroupLayout) -> NcclSystem:
        """Return the communicator as NCCL detects it: its search sees the node's links."""
        offsets = layout.offsets
        group = RankGroup(devices=offsets, node=offsets // layout.domain)
        system = nccl_system(self.cluster, group)
        if self._wiring.is_switch or layout.ranks == 1:
            return system
        ring = self._automatic("all_gather", AUTO_COLLECTIVES, layout).scale_up
        volume = (layout.ranks - 1.0) / layout.ranks
        rate = system.inside_bytes_per_s * min(volume / max(ring, 1e-12), 1.0)
        return replace(system, inside_bytes_per_s=rate)

    def _as_calibrated(
        self, algorithm: str, scale_up: Floats, inside: Floats, links: LinkRates
    ) -> Floats:
        """Return the bytes of an all-reduce, scaled to the bandwidth of gathers.

        What is measured of all-reduce is that of switches that add, where there are such.
        """
        if algorithm == "nvls":
            return np.maximum(scale_up, 2.0 * (1.0 - 1.0 / inside) * _advantage(links))
        adds = self._wiring.scale_up.in_network_reduction
        return scale_up if adds else scale_up * _advantage(links)

    def _latency_s(self, algorithm: str, protocol: Protocol | None, rows: ProfileRows) -> Floats:
        """Return the time of all steps, from the links or from NCCL's figures. [s]"""
        if protocol is None:
            between = self.cluster.node.nic_latency_s + self.cluster.fabric.switch_latency_s
            return rows.steps_inside * rows.inside_s + rows.steps_between * between
        hops = hop_latencies_s(algorithm, protocol)
        steps = rows.steps_inside * hops[rows.hardware] + rows.steps_between * hops[2]
        return np.asarray(base_latency_s(algorithm, protocol) + steps)


T = TypeVar("T")


def _known(group: GroupShape, key: tuple[object, ...], find: Callable[[], T]) -> T:
    """Return the cached facts about groups, computed on first use."""
    if key not in group.known:
        group.known[key] = find()
    found: T = group.known[key]
    return found


def _has_rails(layout: GroupLayout) -> bool:
    """Return whether groups fill several domains evenly, more than one rank in each."""
    _, members = np.unique(layout.offsets // layout.domain, return_counts=True)
    return bool(len(members) > 1 and members.max() == members.min() > 1)


def _advantage(links: LinkRates) -> float:
    """Return the bandwidth of gathers over that of all-reduce."""
    return links.scale_up_bytes_per_s / links.scale_up_reduce_bytes_per_s


def _work_s(loads: PortLoads, links: LinkRates, *, in_turn: Flags) -> Floats:
    inside = loads.scale_up / links.scale_up_bytes_per_s
    between = np.maximum(
        loads.adapter / links.adapter_bytes_per_s, loads.uplink / links.uplink_bytes_per_s
    )
    return np.where(in_turn, inside + between, np.maximum(inside, between))
