"""Time and link loads of a unit of a trace: as recorded, or on a cluster.

Links are as the compiler lays them out for every job: each rank has one port to its scale-up domain
and one to the network. Numbers of the cluster come from the calibration, as in `simulate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from wattree.cost import GroupShape, collective_latency_s, port_loads
from wattree.cost.rates import Rates
from wattree.errors import JobError
from wattree.hardware import Cluster
from wattree.interchange.collectives import sent_bytes
from wattree.interchange.matching import Unit, UnitKind
from wattree.interchange.schema import CollectiveType

_S_PER_MICROSECOND = 1e-6
#: Port loads of collectives that the cost model does not know come from one that it knows.
_LIKE = {
    CollectiveType.ALL_REDUCE: "all_reduce",
    CollectiveType.ALL_TO_ALL: "all_to_all",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of a unit. Fields as those of `ExecutionGraph`; `flows` pairs links with B/s."""

    latency_s: float = 0.0
    work_s: float = 0.0
    flows: tuple[tuple[int, float], ...] = ()
    sent_bytes: float = 0.0


class Timing(Protocol):
    """Where the times of a trace come from."""

    @property
    def link_names(self) -> Sequence[str]:
        """Return the names of the links."""

    @property
    def link_bytes_per_s(self) -> Sequence[float]:
        """Return the bandwidth of each link. [B/s]"""

    @property
    def compute_rate(self) -> float:
        """Return the rate of compute alongside communication."""

    @property
    def communication_rate(self) -> float:
        """Return the rate of communication alongside compute."""

    def cost(self, unit: Unit) -> Cost:
        """Return what `unit` takes.

        Raises:
            JobError: Nothing tells.
        """


class RecordedTiming:
    """Times as the trace holds them: no links, no sharing, no mutual slowdown."""

    link_names: Sequence[str] = ()
    link_bytes_per_s: Sequence[float] = ()
    compute_rate = 1.0
    communication_rate = 1.0

    def cost(self, unit: Unit) -> Cost:
        """Return the recorded time of a unit.

        Raises:
            JobError: It moves data or counts operations, but no time was recorded.
        """
        time_s = recorded_s(unit)
        node = unit.nodes[0]
        works = unit.size_bytes > 0 or node.integer("num_ops", 0) > 0
        if time_s == 0.0 and works and len(unit.nodes) > (unit.kind is UnitKind.COLLECTIVE):
            node.refuse(
                "duration_micros",
                "found no time",
                "expected one, or a cluster to compute it for (--cluster NODE)",
            )
        return Cost(work_s=time_s, sent_bytes=_sent(unit))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTiming:
    """Communication as the cluster does it; compute as recorded, or by its rates.

    Attributes:
        cluster: Rank r on device r.
        rates: What its devices reach.
        roofline: Compute times from operations and bytes even where a time was recorded.
    """

    cluster: Cluster
    rates: Rates
    roofline: bool

    @property
    def link_names(self) -> Sequence[str]:
        """Return the names of the links: two of each device."""
        return [
            f"rank {rank} {port}"
            for rank in range(self.cluster.devices)
            for port in ("scale-up", "network")
        ]

    @property
    def link_bytes_per_s(self) -> Sequence[float]:
        """Return the bandwidth of each link. [B/s]"""
        links = self.rates.links
        return [links.scale_up_bytes_per_s, links.adapter_bytes_per_s] * self.cluster.devices

    @property
    def compute_rate(self) -> float:
        """Return the rate of compute alongside communication."""
        return self.rates.overlap_compute_rate

    @property
    def communication_rate(self) -> float:
        """Return the rate of communication alongside compute."""
        return self.rates.overlap_communication_rate

    def cost(self, unit: Unit) -> Cost:
        """Return what a unit takes on the cluster."""
        if unit.kind is UnitKind.COLLECTIVE:
            return self._collective(unit)
        if unit.kind is UnitKind.TRANSFER:
            return self._transfer(unit)
        if unit.kind is UnitKind.COPY:
            rate = self.cluster.node.device.host_link_bytes_per_s
            return Cost(work_s=recorded_s(unit) or unit.size_bytes / rate)
        return Cost(work_s=self._compute_s(unit))

    def _compute_s(self, unit: Unit) -> float:
        """Return the time of a computation: max(operations / peak, bytes / bandwidth). [s]"""
        node = unit.nodes[0]
        recorded = recorded_s(unit)
        operations, moved = node.integer("num_ops", 0), node.integer("tensor_size", 0)
        for name, amount in (("num_ops", operations), ("tensor_size", moved)):
            if amount < 0:
                node.refuse(name, f"found {amount}", "expected a number from 0")
        is_known = unit.kind is UnitKind.COMPUTE and (operations > 0 or moved > 0)
        if not is_known or (recorded > 0 and not self.roofline):
            return recorded
        rates = self.rates
        return max(operations / rates.linear_flop_per_s, moved / float(rates.memory_bytes_per_s))

    def _collective(self, unit: Unit) -> Cost:
        ranks = len(unit.nodes)
        if ranks < 2:
            return Cost()
        assert unit.collective is not None
        group = self._shape(unit.ranks)
        sent = sent_bytes(unit.collective, unit.size_bytes, ranks)
        kind = _LIKE.get(unit.collective, "all_gather")
        # The cost model takes the whole buffer: what a gather's output is, what an exchange sends.
        factor = (ranks - 1.0) / ranks * (2.0 if kind == "all_reduce" else 1.0)
        links = self.rates.links
        loads = port_loads(kind, np.array([sent / factor]), group, links)
        ports = float(loads.scale_up[0]), float(loads.adapter[0])
        uplink_bytes = float(loads.uplink[0])
        passes = "all_reduce" if unit.collective is CollectiveType.BARRIER else kind
        return self._cost(
            ports=ports,
            uplink_bytes=uplink_bytes,
            latency_s=float(collective_latency_s(passes, group, links)[0]),
            ranks=unit.ranks,
            sent=sent,
        )

    def _transfer(self, unit: Unit) -> Cost:
        """Return what a message takes: half a collective's latency, as it is one of its steps."""
        sender, receiver = unit.nodes[0].rank, unit.receiver
        links, size = self.rates.links, float(unit.size_bytes)
        crosses = self._domain(sender) != self._domain(receiver)
        latency = links.alpha_s / 2 + (links.alpha_network_s if crosses else 0.0)
        ports = (0.0, size) if crosses else (size, 0.0)
        uplink_bytes = size if self._leaf(sender) != self._leaf(receiver) else 0.0
        return self._cost(
            ports=ports, uplink_bytes=uplink_bytes, latency_s=latency, ranks=(sender,), sent=size
        )

    def _cost(
        self,
        *,
        ports: tuple[float, float],
        uplink_bytes: float,
        latency_s: float,
        ranks: Sequence[int],
        sent: float,
    ) -> Cost:
        links = self.rates.links
        rates = links.scale_up_bytes_per_s, links.adapter_bytes_per_s
        work_s = max(load / rate for load, rate in zip(ports, rates, strict=True))
        # Each rank has its share of an oversubscribed leaf's uplinks, as in the closed form.
        work_s = max(work_s, uplink_bytes / links.uplink_bytes_per_s)
        flows = tuple(
            (2 * rank + port, load / work_s)
            for rank in ranks
            for port, load in enumerate(ports)
            if load > 0
        )
        return Cost(latency_s=latency_s, work_s=work_s, flows=flows, sent_bytes=sent)

    def _domain(self, rank: int) -> int:
        return rank // self.cluster.domain_devices

    def _leaf(self, rank: int) -> int:
        return rank // (self.cluster.node.devices * self.cluster.fabric.leaf_nodes)

    def _shape(self, ranks: Sequence[int]) -> GroupShape:
        domains = len({self._domain(rank) for rank in ranks})
        leaves = len({self._leaf(rank) for rank in ranks})
        count = float(len(ranks))
        return GroupShape(
            ranks=np.array([count]),
            inside=np.array([max(count / domains, 1.0)]),
            in_leaf=np.array([max(count / leaves, 1.0)]),
        )


def recorded_s(unit: Unit) -> float:
    """Return the recorded time of a unit; 0 if none was. [s]

    Of a collective's ranks the shortest: the others include waiting for the last to arrive.
    """
    times = [node.duration_us for node in unit.nodes if node.duration_us]
    return min(times, default=0) * _S_PER_MICROSECOND


def check_fits(cluster: Cluster, ranks: int, place: str) -> None:
    """Raise an error for a trace with more ranks than the cluster has devices.

    Raises:
        JobError: It has.
    """
    if ranks > cluster.devices:
        raise JobError(
            place,
            [
                f"found {ranks} ranks, but {cluster.nodes} x {cluster.node.name} has "
                f"{cluster.devices} devices; name more nodes (--cluster {cluster.node.name}:N)"
            ],
        )


def _sent(unit: Unit) -> float:
    if unit.kind is UnitKind.COLLECTIVE and unit.collective is not None:
        return sent_bytes(unit.collective, unit.size_bytes, len(unit.nodes))
    return float(unit.size_bytes) if unit.kind is UnitKind.TRANSFER else 0.0
