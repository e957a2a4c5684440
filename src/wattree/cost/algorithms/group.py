"""Groups: the ranks of a collective and their location in the topology."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Integers
from wattree.distinct import distinct
from wattree.errors import CostError
from wattree.hardware import Cluster, Network, Node
from wattree.hardware.topologies import device_name, node_network, scale_up_network, slice_shape


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


#: Steps after which the search keeps the best it has; the nodes there are need far fewer.
_PATIENCE = 200_000


def disjoint_cycles(cables: Integers) -> tuple[tuple[int, ...], ...]:
    """Return as many disjoint rings through all devices as are found, one per direction.

    NCCL and RCCL look for the same: on DGX-1 with V100 three rings that together use every
    NVLink. Where every pair is joined alike, an even number of devices has a matching left over by
    any such rings; there each cable is used by two rings, half of it by each, and none is left.

    Args:
        cables: How many cables join each pair, symmetric. Shape `(m, m)`.

    Returns:
        Orders of the positions from 0; empty where no ring goes through all.
    """
    if _is_even_mesh(cables):
        return _rings_by_turning(len(cables))
    search = _Search(cables)
    search.extend([])
    return tuple(order for cycle in search.best for order in (cycle, (cycle[0], *cycle[:0:-1])))


def _is_even_mesh(cables: Integers) -> bool:
    size = len(cables)
    apart = cables[~np.eye(size, dtype=bool)]
    return size > 2 and size % 2 == 0 and bool(np.all(apart == apart[0])) and bool(apart[0] > 0)


def _rings_by_turning(size: int) -> tuple[tuple[int, ...], ...]:
    """Return rings of which every two neighbours are neighbours in two, each way round counted.

    One device stands in the middle of the circle of the others. A zigzag through the circle meets
    every distance twice, so that its turns meet every pair twice [1].

    References:
        [1] B. Alspach, "The wonderful Walecki construction", Bulletin of the ICA 52, 2008.
    """
    around = size - 1
    steps = np.arange(around)
    zigzag = np.where(steps % 2, -(-steps // 2), -(steps // 2)) % around
    rings = []
    for turn in range(around):
        order = (around, *((zigzag + turn) % around).tolist())
        rings += [order, (order[0], *order[:0:-1])]
    return tuple(rings)


class _Search:
    """Depth-first search, thickest cables first, until no ring fits or the search limit is hit."""

    def __init__(self, cables: Integers) -> None:
        self.best: list[tuple[int, ...]] = []
        self._left = cables.tolist()
        self._size = len(cables)
        self._most = int(cables.sum(axis=1).min()) // 2
        self._patience = _PATIENCE

    def extend(self, found: list[tuple[int, ...]]) -> bool:
        """Add rings to those found; return true when the search is finished or out of time."""
        if len(found) > len(self.best):
            self.best = list(found)
        if len(self.best) >= self._most or self._patience <= 0:
            return True
        return self._walk([0], found)

    def _walk(self, path: list[int], found: list[tuple[int, ...]]) -> bool:
        self._patience -= 1
        if self._patience <= 0:
            return True
        at = path[-1]
        if len(path) == self._size:
            if not self._left[at][0]:
                return False
            return self._with_cable(at, 0, lambda: self.extend([*found, tuple(path)]))
        onward = [other for other in range(self._size) if self._left[at][other] > 0]
        for other in sorted(set(onward) - set(path), key=lambda each: -self._left[at][each]):
            if self._with_cable(at, other, lambda: self._walk([*path, other], found)):  # noqa: B023
                return True
        return False

    def _with_cable(self, one: int, other: int, go_on: object) -> bool:
        self._left[one][other] -= 1
        self._left[other][one] -= 1
        done = bool(go_on())  # type: ignore[operator]
        self._left[one][other] += 1
        self._left[other][one] += 1
        return done
