"""The mesh on the cluster: shapes of process groups, paths between stages, links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.cost import GroupShape
from wattree.hardware import Cluster
from wattree.hardware.places import DevicePlaces, device_places
from wattree.strategy import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """Links of one kind and the ranks that send over them.

    Attributes:
        name: For people: `scale-up`, `network`, `uplink`.
        load: Field of a task that holds the bytes one rank sends over such links.
        of_rank: Number of the link that each rank uses, `(ranks,)`.
        ranks_per_link: How many ranks a link is meant for: its bandwidth over that of one rank
            where all send at once.
        slowdown: Factor by which each link is slower than that, `(links,)`; None for 1.
        bandwidth_bytes_per_s: Of one link, where no rate of a rank tells; else None. [B/s]
        one_way: All that it carries goes in one direction, or both ways share it.
        parts: Ranks that a link is meant for, by pool, `(pools, links)`, where pools differ: its
            bandwidth is the sum of what ranks of each kind have where all send at once.
    """

    name: str
    load: str
    of_rank: Integers
    ranks_per_link: float = 1.0
    slowdown: Floats | None = None
    bandwidth_bytes_per_s: float | None = None
    one_way: bool = False
    parts: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshTopology:
    """A mesh laid on a cluster.

    Attributes:
        mesh: Ranks as a grid.
        cluster: Devices in order.
        devices: Device of each rank, `(ranks,)`; None puts rank r on device r.
        behind: Links to memory behind the devices, as far as the job uses them.
    """

    mesh: Mesh
    cluster: Cluster
    devices: Integers | None = field(default=None, compare=False)
    behind: tuple[LinkUse, ...] = ()
    _shapes: dict[tuple[str, ...], GroupShape] = field(default_factory=dict, repr=False)
    _places: list[DevicePlaces] = field(default_factory=list, repr=False)

    @property
    def places(self) -> DevicePlaces:
        """Where the devices sit; only looked up where pools differ."""
        if not self._places:
            self._places.append(device_places(self.cluster))
        return self._places[0]

    def pool_of(self, ranks: Integers) -> Integers:
        """Return the pool of each rank's device."""
        if not self.cluster.is_mixed:
            return np.zeros_like(ranks)
        return self.places.pool[self.device_of(ranks)]

    def device_of(self, ranks: Integers) -> Integers:
        """Return the device of each rank."""
        return ranks if self.devices is None else self.devices[ranks]

    def domain_of(self, ranks: Integers) -> Integers:
        """Return the scale-up domain of each rank's device."""
        devices = self.device_of(ranks)
        if self.cluster.is_mixed:
            return self.places.domain[devices]
        return devices // self.cluster.domain_devices

    def leaf_of(self, ranks: Integers) -> Integers:
        """Return the leaf switch (or pod) of each rank's node."""
        devices = self.device_of(ranks)
        if self.cluster.is_mixed:
            return self.places.leaf[devices]
        return devices // (self.cluster.node.devices * self.cluster.fabric.leaf_nodes)

    def group(self, axes: tuple[str, ...]) -> GroupShape:
        """Return the shape of the groups over `axes`: that of their smallest part.

        Groups of one mesh differ only where degrees and domains do not divide each other. What
        they exchange passes the adapters of the few members that are apart from the others.
        """
        if axes not in self._shapes:
            groups = self.mesh.groups(axes)
            inside, domains = member_counts(groups, self.domain_of(groups))
            in_leaf, _ = member_counts(groups, self.leaf_of(groups))
            self._shapes[axes] = GroupShape(
                ranks=np.array([float(groups.shape[1])]),
                inside=inside.min(keepdims=True),
                in_leaf=in_leaf.min(keepdims=True),
                domains=domains.max(keepdims=True),
                spans=self.spans(axes),
                filled=self.filled,
                mesh=self.spans(tuple(self.strides())),
            )
        return self._shapes[axes]

    @property
    def filled(self) -> Floats:
        """Devices of one scale-up domain that have a rank, `(1,)`."""
        if self.devices is None:
            largest = max(pool.domain_devices for pool in self.cluster.pools)
            return np.array([float(min(self.mesh.ranks, largest))])
        return np.array([float(np.bincount(self.domain_of(np.arange(self.mesh.ranks))).max())])

    @property
    def has_even_domains(self) -> bool:
        """Whether domains of the ranks are of one size; of several pools, also those of nodes."""
        if self.cluster.is_mixed:
            return self.cluster.has_even_domains
        full, rest = divmod(self.cluster.devices, self.cluster.domain_devices)
        used = self.domain_of(np.arange(self.mesh.ranks if rest else 0))
        return not rest or bool(used.max() < full or used.min() == full)

    def filled_of(self, pool: int) -> float:
        """Return the devices of one scale-up domain of a pool that have a rank, at most."""
        if not self.cluster.is_mixed:
            return float(self.filled[0])
        return float(min(self.mesh.ranks, self.cluster.pools[pool].domain_devices))

    def strides(self) -> dict[str, Floats]:
        """Return axis → ranks from one member of its groups to the next, `(1,)`."""
        strides, stride = {}, 1.0
        for axis, degree in reversed(self.mesh.axes):
            strides[axis] = np.array([stride])
            stride *= degree
        return strides

    def spans(self, axes: tuple[str, ...]) -> tuple[tuple[Floats, Floats], ...]:
        """Return degree and stride of each axis; nothing where domains of pools differ in size."""
        if not self.has_even_domains:
            return ()
        strides = self.strides()
        return tuple(
            (np.array([float(self.mesh.degree(axis))]), strides[axis])
            for axis in axes
            if axis in strides
        )

    def stage_ranks(self, stage: int) -> Integers:
        """Return the ranks of a stage of the pipeline, ascending; it is one of this mesh."""
        if self.mesh.stages == 1:
            return np.arange(self.mesh.ranks)
        place = stage - self.mesh.stages_before
        return np.flatnonzero(self.mesh.coordinates()[self.mesh.stage_axis] == place)

    def distance(self, senders: Integers, receivers: Integers) -> Integers:
        """Return 0 for pairs in one scale-up domain, 1 under one leaf switch, 2 beyond."""
        crosses = self.domain_of(senders) != self.domain_of(receivers)
        leaves = self.leaf_of(senders) != self.leaf_of(receivers)
        return np.asarray(np.where(crosses, 1 + leaves, 0), dtype=np.int64)

    def links(self) -> tuple[LinkUse, ...]:
        """Return the links that ranks send over: ports, adapters, and uplinks if they can crowd.

        Links are numbered over the whole cluster, so equal numbers of two jobs are one link.
        """
        ranks = np.arange(self.mesh.ranks)
        devices = self.device_of(ranks)
        ports = LinkUse(name="scale-up", load="scale_up_bytes", of_rank=devices)
        fabric = self.cluster.fabric
        crowds = fabric.oversubscription > 1 and self.cluster.nodes > fabric.leaf_nodes
        if self.cluster.is_mixed:
            mixed = mixed_links(self.cluster, self.places, uplinks=crowds)
            return tuple(self._of_ranks(links, devices) for links in mixed)
        uses = [ports, self._adapters(devices)]
        if crowds:
            uses.append(self._uplinks(ranks))
        return (*uses, *self.behind)

    def _of_ranks(self, links: SharedLinks, devices: Integers) -> LinkUse:
        """Return the links of all devices as those of the ranks that run on them."""
        of_rank = links.of_device[devices]
        counts = np.bincount(of_rank)
        adapters = links.load == "adapter_bytes"
        return LinkUse(
            name=links.name,
            load=links.load,
            of_rank=of_rank,
            ranks_per_link=float(counts.max(initial=1)),
            slowdown=self._slowdown(links.of_device) if adapters else None,
            parts=links.parts,
        )

    def _adapters(self, devices: Integers) -> LinkUse:
        """Each device sends over the nearest adapter; devices share adapters if there are fewer."""
        node = self.cluster.node
        shared = 0 < node.nics < node.devices
        return LinkUse(
            name="network",
            load="adapter_bytes",
            of_rank=self._adapter_of(devices),
            ranks_per_link=node.devices / node.nics if shared else 1.0,
            slowdown=self._slowdown(self._adapter_of(np.arange(self.cluster.devices))),
        )

    def _adapter_of(self, devices: Integers) -> Integers:
        node = self.cluster.node
        if not 0 < node.nics < node.devices:
            return devices
        local = devices % node.devices
        return devices // node.devices * node.nics + local * node.nics // node.devices

    def _slowdown(self, adapter_of: Integers) -> Floats | None:
        """Return the factor of each adapter, given that of each device."""
        if not self.cluster.slow_links:
            return None
        factors = np.ones(int(adapter_of.max()) + 1)
        for device, factor in self.cluster.slow_links.items():
            factors[adapter_of[device]] = max(factors[adapter_of[device]], factor)
        return factors

    def _uplinks(self, ranks: Integers) -> LinkUse:
        """All uplinks of a leaf are one; rail-optimised fabrics have a leaf for each rail."""
        node, fabric = self.cluster.node, self.cluster.fabric
        rails = min(node.nics, node.devices) if fabric.kind == "rail-optimised" else 1
        local = self.device_of(ranks) % node.devices
        return LinkUse(
            name="uplink",
            load="uplink_bytes",
            of_rank=self.leaf_of(ranks) * rails + local * rails // node.devices,
            ranks_per_link=node.devices * fabric.leaf_nodes / rails,
        )


def member_counts(groups: Integers, places: Integers) -> tuple[Floats, Floats]:
    """Return for each rank the members of its group in its place, and the number of places.

    Args:
        groups: Members by group, `(groups, members)`.
        places: Where each lies, of the same shape.
    """
    width = int(places.max()) + 1
    keys = np.arange(len(groups))[:, None] * width + places
    distinct, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    of_group = np.bincount(distinct // width, minlength=len(groups))
    own, number = np.empty(groups.size), np.empty(groups.size)
    own[groups.ravel()] = counts[inverse.ravel()]
    number[groups.ravel()] = np.repeat(of_group, groups.shape[1])
    return own, number


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLinks:
    """Links of one kind over a whole cluster.

    Attributes:
        name, load: As `topology.LinkUse`.
        of_device: Index of the link of each device, `(devices,)`.
        parts: Devices designed for each link, by pool, `(pools, links)`.
    """

    name: str
    load: str
    of_device: Integers
    parts: Floats


def mixed_links(cluster: Cluster, places: DevicePlaces, *, uplinks: bool) -> Iterator[SharedLinks]:
    """Yield ports, adapters and, if requested, uplinks of all devices."""
    everyone = np.arange(cluster.devices)
    alone = np.zeros((len(cluster.pools), cluster.devices))
    alone[places.pool, everyone] = 1.0
    yield SharedLinks(name="scale-up", load="scale_up_bytes", of_device=everyone, parts=alone)
    yield _adapters(cluster, places)
    if uplinks:
        yield _uplinks(cluster, places)


def _adapters(cluster: Cluster, places: DevicePlaces) -> SharedLinks:
    """Return adapters: each device uses the nearest; devices share where adapters are fewer."""
    of_device, parts, first = np.empty(cluster.devices, dtype=np.int64), [], 0
    for number, pool in enumerate(cluster.pools):
        own = places.pool == number
        node = pool.node
        shared = 0 < node.nics < node.devices
        per_node = node.nics if shared else node.devices
        local = places.local[own]
        of_node = np.arange(pool.devices) // node.devices
        of_device[own] = first + of_node * per_node + local * per_node // node.devices
        part = np.zeros((len(cluster.pools), pool.nodes * per_node))
        part[number] = node.devices / per_node
        parts.append(part)
        first += pool.nodes * per_node
    return SharedLinks(
        name="network",
        load="adapter_bytes",
        of_device=of_device,
        parts=np.concatenate(parts, axis=1),
    )


def _uplinks(cluster: Cluster, places: DevicePlaces) -> SharedLinks:
    """Return uplinks, all of a leaf as one; rail-optimized fabrics have a leaf for each rail.

    Places of a leaf that the cluster leaves empty count as those that it fills, on average.
    """
    rails_apart = cluster.fabric.kind == "rail-optimised"
    rails = np.array(
        [min(p.node.nics, p.node.devices) if rails_apart else 1 for p in cluster.pools]
    )
    per_node = np.array([pool.node.devices for pool in cluster.pools])
    of_pool = places.pool
    rail = places.local * rails[of_pool] // per_node[of_pool]
    of_device = places.leaf * int(rails.max()) + rail
    parts = np.zeros((len(cluster.pools), int(of_device.max()) + 1))
    np.add.at(parts, (of_pool, of_device), 1.0)
    first_of_node = np.flatnonzero(places.local == 0)
    filled = np.bincount(places.leaf[first_of_node])
    leaf = np.arange(parts.shape[1]) // int(rails.max())
    return SharedLinks(
        name="uplink",
        load="uplink_bytes",
        of_device=of_device,
        parts=parts * cluster.fabric.leaf_nodes / filled[leaf],
    )
