"""Adapters and uplinks of clusters with several pools: sharing devices and bandwidths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.hardware import Cluster
from wattree.hardware.places import DevicePlaces


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
