"""Location of every device of a mixed cluster: pool, node, scale-up domain, leaf switch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Integers
from wattree.hardware.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlaces:
    """Locations of devices, `(devices,)` each.

    Attributes:
        pool: Number of the pool.
        local: Number of the device in its node.
        node: Number of the node in the cluster.
        domain: Number of the scale-up domain in the cluster.
        leaf: Number of the leaf switch (or pod), which may hold nodes of several pools.
    """

    pool: Integers
    local: Integers
    node: Integers
    domain: Integers
    leaf: Integers


def device_places(cluster: Cluster) -> DevicePlaces:
    """Return the locations of a cluster's devices; domains end with their pool."""
    columns: list[Integers] = []
    nodes = domains = 0
    for number, pool in enumerate(cluster.pools):
        device = np.arange(pool.devices)
        per_node, per_domain = pool.node.devices, pool.domain_devices
        columns.append(
            np.stack(
                [
                    np.full(pool.devices, number),
                    device % per_node,
                    nodes + device // per_node,
                    domains + device // per_domain,
                ]
            )
        )
        nodes += pool.nodes
        domains += pool.domains
    pools, local, node, domain = np.concatenate(columns, axis=1)
    return DevicePlaces(
        pool=pools, local=local, node=node, domain=domain, leaf=node // cluster.fabric.leaf_nodes
    )
