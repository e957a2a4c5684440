"""Groups: the ranks of a collective and their location in the topology."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Integers
from wattree.cost.algorithms.cycles import disjoint_cycles
from wattree.distinct import distinct
from wattree.errors import CostError
from wattree.hardware import Cluster, Network, Node
from wattree.hardware.topologies import (
    device_name,
    node_network,
    scale_up_network,
    slice_shape,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """Ranks in order, and the domain of fast links in which each sits.

    Attributes:
        devices: Device of each rank; rank i is vertex `d{devices[i]}`. Shape `(n,)`.
        node: Domain of each rank, any numbers: a node, or a rack of NVL72. Shape `(n,)`.
        cycles: Orders in which rings go through the members of one domain, positions from 0. More
            than one where devices are cabled to each other and each order uses other cables.
        shape: Lengths of the axes where the ranks, in order, fill a grid of neighbours; else None.
        switches: For each domain in ascending order, the switch that can add; empty if none can.
    """

    devices: Integers
    node: Integers
    cycles: tuple[tuple[int, ...], ...] = ()
    switches: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.devices) == 0 or len(self.devices) != len(self.node):
            raise CostError(
                f"a group needs at least one rank and a domain for each, found "
                f"{len(self.devices)} devices and {len(self.node)} domains"
            )
        values, counts = np.unique(self.devices, return_counts=True)
        if np.any(counts > 1):
            raise CostError(f"device {values[counts > 1][0]} is in the group more than once")

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    @property
    def vertices(self) -> tuple[str, ...]:
        """Name of each rank's device in the network."""
        return tuple(device_name(device) for device in self.devices.tolist())

    @property
    def nodes(self) -> int:
        """Number of domains."""
        return len(distinct(self.node))

    def members(self) -> list[Integers]:
        """Return the ranks in each domain, domains ascending."""
        order = np.argsort(self.node, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self.node[order])) + 1)

    def grid(self, *, needed_by: str) -> Integers:
        """Return the ranks by domain and index within it. Shape `(domains, members)`.

        Raises:
            CostError: Domains hold different numbers of members.
        """
        members = self.members()
        sizes = {len(each) for each in members}
        if len(sizes) > 1:
            raise CostError(
                f"{needed_by} needs as many ranks in every domain, found {min(sizes)} to "
                f"{max(sizes)}; use 'ring', 'tree' or 'direct'"
            )
        return np.stack(members)


def group_of(cluster: Cluster, devices: Sequence[int]) -> RankGroup:
    """Return the group of these devices of a cluster, in the given order.

    Raises:
        CostError: A device is not in the cluster, or is named twice.
    """
    array = np.asarray(devices, dtype=np.int64).reshape(-1)
    wrong = array[(array < 0) | (array >= cluster.devices)]
    if wrong.size:
        raise CostError(
            f"device {wrong[0]} of the group is not in the cluster, which has 0 to "
            f"{cluster.devices - 1}"
        )
    size = cluster.domain_devices
    domain = array // size
    local = array[domain == domain[0]] % size if len(array) else array
    return RankGroup(
        devices=array,
        node=domain,
        cycles=ring_cycles(cluster.node, size, local),
        switches=_switches(cluster, domain),
        shape=_shape(cluster, array),
    )


def _shape(cluster: Cluster, devices: Integers) -> tuple[int, ...] | None:
    """Return the shape of a torus that the group fills in order, or None."""
    scale_up, size = cluster.node.scale_up, cluster.domain_devices
    if scale_up.kind != "torus" or scale_up.shape is None or len(devices) != size:
        return None
    start = int(devices[0])
    if start % size or not np.array_equal(devices, np.arange(start, start + size)):
        return None
    return slice_shape(size, scale_up.shape, scale_up.wrap_unit)


def _switches(cluster: Cluster, domain: Integers) -> tuple[str, ...]:
    scale_up = cluster.node.scale_up
    if not scale_up.in_network_reduction or scale_up.kind != "switch":
        return ()
    own_node = cluster.domain_devices == cluster.node.devices
    pattern = "nvswitch0@{}" if own_node else "nvswitch{}"
    return tuple(pattern.format(each) for each in distinct(domain).tolist())


def has_cycles(size: int) -> bool:
    """Return whether rings are searched along the cables of domains of `size` devices."""
    return size <= 16


def ring_cycles(node: Node, size: int, local: Integers) -> tuple[tuple[int, ...], ...]:
    """Return the rings along the cables of a domain; empty where there are none, or too many.

    Args:
        node: Whose devices.
        size: Devices of a domain.
        local: Places of the members in the domain, ascending.
    """
    if node.scale_up.kind in {"switch", "pcie"} or len(local) <= 2 or not has_cycles(size):
        return ()
    if node.links or size == node.devices:
        network = node_network(node)
    else:
        network = scale_up_network(node.scale_up, [device_name(place) for place in range(size)])
    return disjoint_cycles(_cables(network, [device_name(place) for place in local.tolist()]))


def _cables(network: Network, names: Sequence[str]) -> Integers:
    """Return the number of cables between each pair, in units of the thinnest cable."""
    place = {name: index for index, name in enumerate(names)}
    rate = np.zeros((len(names), len(names)))
    for link in network.links:
        if link.source in place and link.target in place:
            rate[place[link.source], place[link.target]] += link.bandwidth_bytes_per_s
    thinnest = rate[rate > 0].min() if np.any(rate > 0) else 1.0
    return np.asarray(np.rint(rate / thinnest), dtype=np.int64)
