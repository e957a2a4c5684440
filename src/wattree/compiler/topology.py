"""Where the mesh lies on the cluster: shapes of process groups, paths between stages, links."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.mixed_links import SharedLinks, mixed_links
from wattree.cost import GroupShape
from wattree.hardware import Cluster
from wattree.hardware.places import DevicePlaces, device_places
from wattree.strategy import Mesh

__all__ = ["LinkUse", "MeshTopology"]

Integers = NDArray[np.int64]


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
        parts: Ranks that a link is meant for, by pool, `(pools, links)`, where pools differ: its
            bandwidth is the sum of what ranks of each kind have where all send at once.
    """

    name: str
    load: str
    of_rank: Integers
    ranks_per_link: float = 1.0
    slowdown: NDArray[np.float64] | None = None
    parts: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshTopology:
    """A mesh laid on a cluster, rank r on device r.

    Attributes:
        mesh: Ranks as a grid.
        cluster: Devices in order.
    """

    mesh: Mesh
    cluster: Cluster
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
        return self.places.pool[ranks]

    def domain_of(self, ranks: Integers) -> Integers:
        """Return the scale-up domain of each rank's device."""
        if self.cluster.is_mixed:
            return self.places.domain[ranks]
        return ranks // self.cluster.domain_devices

    def leaf_of(self, ranks: Integers) -> Integers:
        """Return the leaf switch (or pod) of each rank's node."""
        if self.cluster.is_mixed:
            return self.places.leaf[ranks]
        return ranks // (self.cluster.node.devices * self.cluster.fabric.leaf_nodes)

    def group(self, axes: tuple[str, ...]) -> GroupShape:
        """Return the shape of the groups over `axes`: that of the most spread group.

        Groups of one mesh differ only where degrees and domains do not divide each other.
        """
        if axes not in self._shapes:
            groups = self.mesh.groups(axes)
            ranks = float(groups.shape[1])
            self._shapes[axes] = GroupShape(
                ranks=np.array([ranks]),
                inside=np.array([max(ranks / _places(self.domain_of(groups)), 1.0)]),
                in_leaf=np.array([max(ranks / _places(self.leaf_of(groups)), 1.0)]),
            )
        return self._shapes[axes]

    def stage_ranks(self, stage: int) -> Integers:
        """Return the ranks of a pipeline stage, ascending."""
        stages = self.mesh.degree("pp")
        if stages == 1:
            return np.arange(self.mesh.ranks)
        return np.flatnonzero(self.mesh.coordinates()["pp"] == stage)

    def reach(self, senders: Integers, receivers: Integers) -> Integers:
        """Return 0 for pairs in one scale-up domain, 1 under one leaf switch, 2 beyond."""
        crosses = self.domain_of(senders) != self.domain_of(receivers)
        leaves = self.leaf_of(senders) != self.leaf_of(receivers)
        return np.asarray(np.where(crosses, 1 + leaves, 0), dtype=np.int64)

    def links(self) -> tuple[LinkUse, ...]:
        """Return the links that ranks send over: ports, adapters, and uplinks if they can crowd."""
        ranks = np.arange(self.mesh.ranks)
        ports = LinkUse(name="scale-up", load="scale_up_bytes", of_rank=ranks)
        fabric = self.cluster.fabric
        crowds = fabric.oversubscription > 1 and self.cluster.nodes > fabric.leaf_nodes
        if self.cluster.is_mixed:
            mixed = mixed_links(self.cluster, self.places, uplinks=crowds)
            return tuple(self._of_ranks(links, ranks) for links in mixed)
        uses = [ports, self._adapters(ranks)]
        if crowds:
            uses.append(self._uplinks(ranks))
        return tuple(uses)

    def _of_ranks(self, links: SharedLinks, ranks: Integers) -> LinkUse:
        """Return the links of all devices as those of the ranks that run on them."""
        of_rank = links.of_device[ranks]
        counts = np.bincount(of_rank)
        return LinkUse(
            name=links.name,
            load=links.load,
            of_rank=of_rank,
            ranks_per_link=float(counts.max(initial=1)),
            slowdown=self._slowdown(of_rank) if links.load == "adapter_bytes" else None,
            parts=links.parts,
        )

    def _adapters(self, ranks: Integers) -> LinkUse:
        """Each device sends over the adapter beside it; devices share where adapters are fewer."""
        node = self.cluster.node
        of_rank, per_link = ranks, 1.0
        if 0 < node.nics < node.devices:
            local = ranks % node.devices
            of_rank = ranks // node.devices * node.nics + local * node.nics // node.devices
            per_link = node.devices / node.nics
        return LinkUse(
            name="network",
            load="adapter_bytes",
            of_rank=of_rank,
            ranks_per_link=per_link,
            slowdown=self._slowdown(of_rank),
        )

    def _slowdown(self, of_rank: Integers) -> NDArray[np.float64] | None:
        """Return the factor of each adapter; a device names the one beside it."""
        if not self.cluster.slow_links:
            return None
        factors = np.ones(int(of_rank.max()) + 1)
        for device, factor in self.cluster.slow_links.items():
            if device < len(of_rank):
                factors[of_rank[device]] = max(factors[of_rank[device]], factor)
        return factors

    def _uplinks(self, ranks: Integers) -> LinkUse:
        """All uplinks of a leaf are one; rail-optimised fabrics have a leaf for each rail."""
        node, fabric = self.cluster.node, self.cluster.fabric
        rails = min(node.nics, node.devices) if fabric.kind == "rail-optimised" else 1
        local = ranks % node.devices
        return LinkUse(
            name="uplink",
            load="uplink_bytes",
            of_rank=self.leaf_of(ranks) * rails + local * rails // node.devices,
            ranks_per_link=node.devices * fabric.leaf_nodes / rails,
        )


def _places(of_members: Integers) -> float:
    """Return over how many places the most spread group lies; shape `(groups, members)`."""
    ordered = np.sort(of_members, axis=1)
    return float(1 + (np.diff(ordered, axis=1) != 0).sum(axis=1).max(initial=0))
