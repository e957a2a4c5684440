"""Links of a scale-up domain, and the load of all its concurrent groups on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.cost.algorithms.routes import Routes
from wattree.hardware import Cluster, Link, Node, ScaleUp
from wattree.hardware.topologies import (
    adapter_of,
    device_name,
    node_network,
    scale_up_network,
    slice_shape,
)
from wattree.hardware.topologies.cluster_network import adapters_of

#: Largest domain that is executed link by link; a device of a larger one is taken for its port.
_MOST_DEVICES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The links of one scale-up domain. Hashable, so that execution results can be cached.

    Attributes:
        domain: Devices that reach each other over these links.
        scale_up: Kind and rates.
        links: As the node lists them.
        adapters: Adapters of a node, and the rate of each. [B/s]
        node: Whose domain it is.
    """

    domain: int
    scale_up: ScaleUp
    links: tuple[Link, ...]
    adapters: tuple[int, float]
    node: Node = field(compare=False, repr=False)

    @property
    def is_switch(self) -> bool:
        """Whether a switch joins the devices, so that pairs do not share links."""
        is_large = self.domain > _MOST_DEVICES
        return self.domain == 1 or is_large or (self.scale_up.kind == "switch" and not self.links)

    @property
    def shares_host(self) -> bool:
        """Whether the path to the adapters is shared with the path to other devices."""
        return self.scale_up.kind == "pcie" or bool(self.links)

    @property
    def torus(self) -> tuple[int, ...] | None:
        """Lengths of the axes of the domain's torus or ring, last fastest."""
        if self.links or self.is_switch:
            return None
        if self.scale_up.kind == "torus" and self.scale_up.shape is not None:
            return _slice(self.domain, self.scale_up.shape, self.scale_up.wrap_unit)
        return (self.domain,) if self.scale_up.kind in {"ring", "torus"} else None

    def placed(self, torus: tuple[int, ...]) -> Wiring:
        """Return the wiring with the axes of its torus in another order, if one is given."""
        if not torus or torus == self.torus:
            return self
        scale_up = replace(self.scale_up, shape=torus)
        return replace(self, scale_up=scale_up, node=replace(self.node, scale_up=scale_up))


_slice = lru_cache(maxsize=256)(slice_shape)


def wiring_of(cluster: Cluster) -> Wiring:
    """Return the wiring of a cluster's scale-up domains."""
    node = cluster.node
    return Wiring(
        domain=cluster.domain_devices,
        scale_up=node.scale_up,
        links=node.links,
        adapters=adapters_of(node),
        node=node,
    )


class LinkTraffic(NamedTuple):
    """Concurrent messages that involve the first domain, devices numbered within it.

    Attributes:
        sender, receiver: Devices; -1 for a way out of the domain, over the nearest adapter.
        size_bytes: Of each. [B]
    """

    sender: Integers
    receiver: Integers
    size_bytes: Floats


class LinkCrossing(NamedTuple):
    """Path of messages within a domain: latency of the longest path, and its kind of hardware."""

    latency_s: float
    hardware: int


@lru_cache(maxsize=64)
def _routes(wiring: Wiring) -> Routes:
    devices = [device_name(place) for place in range(wiring.domain)]
    own = wiring.links or wiring.scale_up.kind == "pcie"
    if wiring.domain == wiring.node.devices or (own and wiring.domain < wiring.node.devices):
        return Routes(node_network(wiring.node))
    return Routes(scale_up_network(wiring.scale_up, devices))


@lru_cache(maxsize=64)
def _touches_adapter(wiring: Wiring) -> Flags:
    ends = [(link.source, link.target) for link in _routes(wiring).network.links]
    return np.array([any(end.startswith("nic") for end in pair) for pair in ends])


def _ends(wiring: Wiring, traffic: LinkTraffic) -> tuple[Integers, Integers, Floats]:
    """Return vertices of the messages; messages to other domains end at the adapter."""
    routes = _routes(wiring)
    devices = routes.places([device_name(place) for place in range(wiring.domain)])
    leaves = (traffic.sender < 0) | (traffic.receiver < 0)
    count = wiring.adapters[0]
    if not wiring.shares_host or count == 0:
        kept = ~leaves
        sender, receiver = traffic.sender[kept], traffic.receiver[kept]
        return devices[sender], devices[receiver], traffic.size_bytes[kept]
    nearest = [
        adapter_of(place, devices=wiring.node.devices, adapters=count)
        for place in range(wiring.domain)
    ]
    adapters = routes.places([f"nic{adapter}" for adapter in nearest])
    sender = np.where(traffic.sender < 0, adapters[traffic.receiver], devices[traffic.sender])
    receiver = np.where(traffic.receiver < 0, adapters[traffic.sender], devices[traffic.receiver])
    return sender, receiver, traffic.size_bytes


def busiest_s(wiring: Wiring, traffics: Sequence[LinkTraffic]) -> float:
    """Return the time of the busiest link of a domain under concurrent messages. [s]

    Links of adapters are left out: adapters have loads and sharing of their own.

    Raises:
        CostError: A device cannot be reached from another.
    """
    routes = _routes(wiring)
    together = LinkTraffic(*(np.concatenate(parts) for parts in zip(*traffics, strict=True)))
    sender, receiver, size = _ends(wiring, together)
    if not len(sender):
        return 0.0
    loads = routes.loads_bytes(routes.crossed(sender, receiver), size)
    times = np.where(_touches_adapter(wiring), 0.0, loads / routes.bandwidth_bytes_per_s)
    return float(times.max(initial=0.0))


def crossing_of(wiring: Wiring, traffic: LinkTraffic) -> LinkCrossing:
    """Return the path properties of messages within a domain.

    Raises:
        CostError: A device cannot be reached from another.
    """
    inside = (traffic.sender >= 0) & (traffic.receiver >= 0)
    if not inside.any():
        return LinkCrossing(0.0, 0)
    routes = _routes(wiring)
    devices = routes.places([device_name(place) for place in range(wiring.domain)])
    crossed = routes.crossed(devices[traffic.sender[inside]], devices[traffic.receiver[inside]])
    return LinkCrossing(float(crossed.latency_s.max()), int(routes.hardware(crossed).max()))
