"""Clusters: equal nodes on a fabric at a site, and what makes single ranks slower."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from wattree.errors import HardwareError
from wattree.hardware.node import Node

__all__ = ["Cluster", "Fabric", "Site", "attached"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The network between nodes.

    Attributes:
        name, title: Catalogue name; name for people.
        kind: `fat-tree` (all adapters of a node meet one switch), `rail-optimised` (adapter i of
            every node meets switch i), `ethernet`, `torus`, `dragonfly`.
        oversubscription: Bandwidth into the leaf layer / bandwidth out of it; 1 is non-blocking.
        leaf_nodes: Nodes under one leaf switch (or pod); traffic inside is never oversubscribed.
        switch_latency_s: Added for each message that leaves the node. [s]
        switch_w_per_nic: Switch power, per adapter attached, all tiers. [W]
        port_bytes_per_s: Line rate of one switch port, one direction, which an adapter that could
            do more falls back to; None where the fabric takes any. [B/s]
        sources: Field → where its value comes from.
    """

    name: str
    title: str
    kind: str
    oversubscription: float
    leaf_nodes: int
    switch_latency_s: float
    switch_w_per_nic: float
    port_bytes_per_s: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        misfits = {
            key: f"found {found:g} for fabric {self.name}, expected 1 or more"
            for key in ("oversubscription", "leaf_nodes")
            if not (found := getattr(self, key)) >= 1
        }
        if misfits:
            raise HardwareError(misfits)


def attached(node: Node, fabric: Fabric) -> Node:
    """Return `node` with its adapters at the rate that they agree on with the ports of `fabric`.

    Both ends of a cable run at the lower of their rates, as link training and auto-negotiation
    settle it.
    """
    rate, port = node.nic_bandwidth_bytes_per_s, fabric.port_bytes_per_s
    if port is None or port >= rate:
        return node
    return replace(node, nic_bandwidth_bytes_per_s=port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the cluster stands.

    Attributes:
        name: For people.
        pue: Facility energy / IT energy.
        carbon_gco2e_per_j: Grid intensity; None if unknown. [gCO2e/J]
        energy_price_usd_per_j: None if unknown. [USD/J]
        sources: Field → where its value comes from.
    """

    name: str
    pue: float
    carbon_gco2e_per_j: float | None
    energy_price_usd_per_j: float | None
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.pue < 1:
            raise HardwareError(
                {"pue": f"found {self.pue:g} for site {self.name}, expected 1 or more"}
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes joined by a fabric.

    Attributes:
        node: What every node is.
        nodes: How many.
        fabric: What joins them.
        site: Where they stand.
        slowdown: Device index → factor on its compute time (a straggler), 1 where absent.
        slow_links: Device index → factor by which its network adapter is slower, 1 where absent.
        power_limit_w: Cap enforced on every device; None for the rated power. [W]
    """

    node: Node
    nodes: int
    fabric: Fabric
    site: Site
    slowdown: Mapping[int, float] = field(default_factory=dict)
    slow_links: Mapping[int, float] = field(default_factory=dict)
    power_limit_w: float | None = None

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise HardwareError({"nodes": f"found {self.nodes}, expected 1 or more"})
        if self.nodes > 1 and self.node.nics == 0 and self.domain_devices <= self.node.devices:
            raise HardwareError(
                {
                    "nodes": f"{self.nodes} nodes of {self.node.name} have no network adapter to "
                    "reach each other; give the node nics above 0, or use one node"
                }
            )
        if self.fabric.kind == "none" and self.domain_devices < self.devices:
            raise HardwareError(
                {
                    "fabric": f"{self.fabric.name} joins no nodes, and {self.nodes} of "
                    f"{self.node.name} reach no farther than {self.domain_devices} of "
                    f"{self.devices} devices without one; name a fabric with a network, or use "
                    "fewer nodes"
                }
            )
        idle_w = self.node.device.idle_w
        if self.power_limit_w is not None and self.power_limit_w <= idle_w:
            raise HardwareError(
                {
                    "power_limit": f"{self.power_limit_w:g} W is not above what "
                    f"{self.node.device.name} draws at rest, {idle_w:g} W; use a higher one"
                }
            )
        misfits = {}
        for name in ("slowdown", "slow_links"):
            for device, factor in getattr(self, name).items():
                if not 0 <= device < self.devices:
                    misfits[f"{name}.{device}"] = (
                        f"there is no device {device}, expected 0 to {self.devices - 1}"
                    )
                elif not 0 < factor < math.inf:
                    misfits[f"{name}.{device}"] = f"found {factor:g}, expected a factor above 0"
        if misfits:
            raise HardwareError(misfits)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.nodes * self.node.devices

    @property
    def domain_devices(self) -> int:
        """Devices of one scale-up domain that a job uses, within the cluster.

        Where a domain spans nodes, whole nodes of each domain are used and every domain alike:
        256 devices on racks of 72 take 64 of each, as schedulers place them.
        """
        largest = min(max(self.node.scale_up.domain_devices, 1), self.devices)
        step = self.node.devices if largest > self.node.devices else 1
        for candidate in range(largest - largest % step, 0, -step):
            if self.devices % candidate == 0:
                return candidate
        return 1
