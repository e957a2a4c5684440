"""Clusters: pools of equal nodes on a fabric at a site, and what makes single ranks slower."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from wattree.errors import HardwareError
from wattree.hardware.node import Node

#: Least part of each scale-up domain that jobs use where they use all alike: 16 of the 18 nodes of
#: an NVL72, of which powers of two consist; with less, one rack after another fills. An estimate.
_FILLED = 16 / 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Equal nodes of a cluster.

    Attributes:
        node: What every node of the pool is.
        power_limit_w: Cap enforced on every device of the pool; None for the cluster's. [W]
        is_packed: Nodes fill one scale-up domain after another, as their numbers do, or domains are
            used alike; None for alike where that leaves little of them empty.
    """

    node: Node
    nodes: int
    power_limit_w: float | None = None
    is_packed: bool | None = None

    def __post_init__(self) -> None:
        if not hasattr(self.nodes, "__index__") or self.nodes < 1:
            raise HardwareError({"nodes": f"found {self.nodes}, expected a whole number from 1"})

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.nodes * self.node.devices

    @property
    def domain_devices(self) -> int:
        """Devices of one scale-up domain that a job uses, within the pool; the last may have fewer.

        Where a domain spans nodes, whole nodes of each are used. 256 devices on racks of 72 take
        64 of each; 76 fill a rack and take 4 of the next. Domains without a switch, such as slices
        of a torus, are always alike.
        """
        largest = min(max(self.node.scale_up.domain_devices, 1), self.devices)
        step = self.node.devices if largest > self.node.devices else 1
        largest -= largest % step
        alike = next((d for d in range(largest, 0, -step) if self.devices % d == 0), 1)
        if step == 1 or self.node.scale_up.kind != "switch" or self.node.links:
            return alike
        packed = alike < _FILLED * largest if self.is_packed is None else self.is_packed
        return largest if packed else alike

    @property
    def domains(self) -> int:
        """Number of scale-up domains that a job uses."""
        return -(-self.devices // self.domain_devices)

    @property
    def label(self) -> str:
        """Label for display, such as `2 x dgx-h100`."""
        return f"{self.nodes} x {self.node.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The network between nodes.

    Attributes:
        name, title: Catalog name; name for people.
        kind: `fat-tree` (all adapters of a node meet one switch), `rail-optimised` (adapter i of
            every node meets switch i), `ethernet`, `torus`, `dragonfly`.
        oversubscription: Bandwidth into the leaf layer / bandwidth out of it; 1 is non-blocking.
        leaf_nodes: Nodes under one leaf switch (or pod); traffic inside is never oversubscribed.
        switch_latency_s: Added for each message that leaves the node. [s]
        switch_w_per_nic: Switch power, per adapter at the rate of a port, all tiers. [W]
        port_bytes_per_s: Line rate of one switch port, one direction, which an adapter that could
            do more falls back to; None where the fabric takes any. [B/s]
        cabled_nodes: Up to so many nodes are joined by cables alone, without a switch.
        adding_switches: Switches reduce messages of any length (NVIDIA SHARP from version 2).
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
    cabled_nodes: int = 1
    adding_switches: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        misfits = {
            key: f"found {found:g} for fabric {self.name}, expected 1 or more"
            for key in ("oversubscription", "leaf_nodes")
            if not (found := getattr(self, key)) >= 1
        }
        if misfits:
            raise HardwareError(misfits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the cluster stands.

    Attributes:
        name: For people.
        pue: Facility energy / IT energy.
        carbon_gco2e_per_j: Grid intensity; None if unknown. [gCO2e/J]
        energy_price_usd_per_j: None if unknown. [USD/J]
        bills_energy: Energy is paid in addition to the price of nodes; otherwise only if no rent
            is known, because rent includes it.
        sources: Field → where its value comes from.
    """

    name: str
    pue: float
    carbon_gco2e_per_j: float | None
    energy_price_usd_per_j: float | None
    bills_energy: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.pue < 1:
            raise HardwareError(
                {"pue": f"found {self.pue:g} for site {self.name}, expected 1 or more"}
            )

    def carbon_gco2e(self, energy_j: float) -> float | None:
        """Return what making so much energy emits; None if unknown. [gCO2e]"""
        intensity = self.carbon_gco2e_per_j
        return None if intensity is None else intensity * energy_j


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Cluster:
    """Pools of equal nodes joined by a fabric; most clusters are one pool.

    Devices are numbered pool after pool, node after node. A pool that says what the one before it
    says is part of it. Scale-up domains end with their pool.

    Attributes:
        pools: In the order of their devices.
        fabric: What joins the nodes.
        slowdown: Device index → factor on its compute time (a straggler), 1 where absent.
        slow_links: Device index → factor by which its network adapter is slower, 1 where absent.
        power_limit_w: Cap enforced on every device of pools without one of their own; None for
            the rated power. [W]
        is_owned: Jobs pay for, and power, nodes that they leave idle, too.
    """

    pools: tuple[Pool, ...]
    fabric: Fabric
    site: Site
    slowdown: Mapping[int, float] = field(default_factory=dict)
    slow_links: Mapping[int, float] = field(default_factory=dict)
    power_limit_w: float | None = None
    is_owned: bool = False

    def __init__(
        self,
        *,
        fabric: Fabric,
        site: Site,
        pools: Sequence[Pool] = (),
        node: Node | None = None,
        nodes: int | None = None,
        slowdown: Mapping[int, float] | None = None,
        slow_links: Mapping[int, float] | None = None,
        power_limit_w: float | None = None,
        is_owned: bool = False,
    ) -> None:
        """Make a cluster of `pools`, or of `nodes` equal ones.

        `node` and `nodes` together with one pool change it, so that `dataclasses.replace` accepts
        them.
        """
        given = {
            "pools": _merged(_pools(tuple(pools), node, nodes)),
            "fabric": fabric,
            "site": site,
            "slowdown": {} if slowdown is None else slowdown,
            "slow_links": {} if slow_links is None else slow_links,
            "power_limit_w": power_limit_w,
            "is_owned": is_owned,
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)
        _check(self)

    @property
    def is_mixed(self) -> bool:
        """Whether some devices or nodes differ from others by design."""
        return len(self.pools) > 1

    @property
    def pool(self) -> Pool:
        """The only pool.

        Raises:
            HardwareError: There are several, so that none stands for the cluster.
        """
        if len(self.pools) > 1:
            raise HardwareError(
                f"the cluster mixes pools ({self.label}), expected nodes of one kind"
            )
        return self.pools[0]

    @property
    def has_even_domains(self) -> bool:
        """Whether scale-up domains of different pools, and nodes, have as many devices."""
        sizes = {n for pool in self.pools for n in (pool.domain_devices, pool.node.devices)}
        return not self.is_mixed or len(sizes) == 1

    @property
    def node(self) -> Node:
        """The node type of a cluster of equal nodes; raises as `pool` does."""
        return self.pool.node

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return sum(pool.nodes for pool in self.pools)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return sum(pool.devices for pool in self.pools)

    def nodes_for(self, ranks: int) -> int:
        """Return the fewest nodes that have so many devices."""
        return -(-ranks // max(pool.node.devices for pool in self.pools))

    @property
    def domain_devices(self) -> int:
        """Devices of one scale-up domain that a job uses; raises as `pool` does."""
        return self.pool.domain_devices

    @property
    def label(self) -> str:
        """Label for display, such as `2 x dgx-h100 + 2 x dgx-a100`."""
        return " + ".join(pool.label for pool in self.pools)

    def limit_w(self, pool: Pool) -> float | None:
        """Return the power limit of the devices of `pool`; None for the rated power. [W]"""
        return self.power_limit_w if pool.power_limit_w is None else pool.power_limit_w

    def limited(self, power_limit_w: float) -> Cluster:
        """Return the cluster with that limit on every device, overriding the pools' limits. [W]"""
        pools = tuple(replace(pool, power_limit_w=None) for pool in self.pools)
        return replace(self, pools=pools, power_limit_w=power_limit_w)

    def packed(self, *, is_packed: bool = True) -> Cluster:
        """Return the cluster with how nodes fill scale-up domains, for pools that do not say."""
        how = [is_packed if pool.is_packed is None else pool.is_packed for pool in self.pools]
        pools = [replace(pool, is_packed=yes) for pool, yes in zip(self.pools, how, strict=True)]
        return replace(self, pools=tuple(pools))

    def seen_from(self, pool: Pool) -> Cluster:
        """Return the cluster as if all of its nodes were of the type of `pool`."""
        if not self.is_mixed:
            return self
        nodes = -(-self.devices // pool.node.devices)
        return Cluster(node=pool.node, nodes=nodes, fabric=self.fabric, site=self.site)

    def pool_devices(self, ranks: int) -> tuple[int, ...]:
        """Return the number of devices in each pool among the first `ranks` devices."""
        found, left = [], ranks
        for pool in self.pools:
            found.append(min(left, pool.devices))
            left -= found[-1]
        return tuple(found)

    def pool_nodes(self, ranks: int) -> tuple[int, ...]:
        """Return the number of nodes of each pool that hold the first `ranks` devices."""
        lying = zip(self.pool_devices(ranks), self.pools, strict=True)
        return tuple(-(-devices // pool.node.devices) for devices, pool in lying)

    def paid_nodes(self, used: Sequence[float]) -> tuple[float, ...]:
        """Return the nodes of each pool that a job pays for which uses so many of them."""
        return tuple(pool.nodes for pool in self.pools) if self.is_owned else tuple(used)


def _pools(pools: tuple[Pool, ...], node: Node | None, nodes: int | None) -> tuple[Pool, ...]:
    """Return the pools; node and number give a single one, or change it."""
    if len(pools) > 1 and (node is not None or nodes is not None):
        raise HardwareError(
            f"{len(pools)} pools have no node and number of nodes in common; give pools only"
        )
    if pools:
        (*_, last) = pools
        changed = replace(
            last, node=node or last.node, nodes=last.nodes if nodes is None else nodes
        )
        return (*pools[:-1], changed)
    if node is None:
        raise HardwareError("a cluster needs a node, or pools of them")
    return (Pool(node=node, nodes=1 if nodes is None else nodes),)


def _merged(pools: tuple[Pool, ...]) -> tuple[Pool, ...]:
    """Merge adjacent pools that differ only in their number of nodes."""
    found = list(pools[:1])
    for pool in pools[1:]:
        if replace(pool, nodes=found[-1].nodes) == found[-1]:
            found[-1] = replace(pool, nodes=pool.nodes + found[-1].nodes)
        else:
            found.append(pool)
    return tuple(found)


def _check(cluster: Cluster) -> None:
    """Raise an error for invalid values."""
    _check_libraries(cluster)
    for number, pool in enumerate(cluster.pools):
        where = f"pools.{number}." if cluster.is_mixed else ""
        _check_network(cluster, pool, where)
        device, limit_w = pool.node.device, cluster.limit_w(pool)
        if limit_w is not None and limit_w <= device.idle_w:
            key = "power_limit" if pool.power_limit_w is None else f"{where}power_limit"
            raise HardwareError(
                {
                    key: f"{limit_w:g} W is not above what {device.name} draws at rest, "
                    f"{device.idle_w:g} W; use a higher one"
                }
            )
    misfits = {}
    for name in ("slowdown", "slow_links"):
        for index, factor in getattr(cluster, name).items():
            if not 0 <= index < cluster.devices:
                misfits[f"{name}.{index}"] = (
                    f"there is no device {index}, expected 0 to {cluster.devices - 1}"
                )
            elif not 0 < factor < math.inf:
                misfits[f"{name}.{index}"] = f"found {factor:g}, expected a factor above 0"
    if misfits:
        raise HardwareError(misfits)


def _check_libraries(cluster: Cluster) -> None:
    """Raise an error for devices that no collective library has in one group.

    NCCL, RCCL, oneCCL, HCCL, XLA and Neuron each run on one kind of one vendor's devices; Gloo and
    MPI join the CPUs of all.
    """
    pools: dict[tuple[str, str], Pool] = {}
    for pool in cluster.pools:
        device = pool.node.device
        vendor = "" if device.kind == "cpu" else device.vendor.lower()
        pools.setdefault((vendor, device.kind), pool)
    if len(pools) > 1:
        kinds = " and ".join(
            f"{pool.node.name} ({pool.node.device.vendor} {kind})"
            for (_, kind), pool in pools.items()
        )
        raise HardwareError(
            {
                "pools": f"found {kinds}, which no collective library joins in one job; expected "
                "devices of one vendor and kind"
            }
        )


def _check_network(cluster: Cluster, pool: Pool, where: str) -> None:
    """Raise an error for nodes that cannot communicate with each other."""
    joined = not cluster.is_mixed and pool.domain_devices > pool.node.devices
    if cluster.nodes > 1 and pool.node.nics == 0 and not joined:
        raise HardwareError(
            {
                f"{where}nodes": f"{pool.nodes} nodes of {pool.node.name} have no network adapter "
                "to reach each other; give the node nics above 0, or use one node"
            }
        )
    if cluster.fabric.kind == "none" and (cluster.is_mixed or pool.domain_devices < pool.devices):
        raise HardwareError(
            {
                "fabric": f"{cluster.fabric.name} joins no nodes, and {pool.nodes} of "
                f"{pool.node.name} reach no farther than {pool.domain_devices} of "
                f"{cluster.devices} devices without one; name a cluster.fabric with a network "
                "(such as ethernet-10g), or use fewer nodes"
            }
        )
