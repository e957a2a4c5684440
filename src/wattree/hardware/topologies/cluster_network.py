"""The whole cluster as one network: nodes, domains that span them, and what lies between."""

from __future__ import annotations

from collections.abc import Iterator

from wattree.errors import HardwareError
from wattree.hardware.cluster import Cluster, Fabric
from wattree.hardware.network import Network
from wattree.hardware.topologies.dragonfly import dragonfly
from wattree.hardware.topologies.fat_tree import fat_tree
from wattree.hardware.topologies.join import device_name, join, renamed
from wattree.hardware.topologies.memory_tier import with_memory_tier
from wattree.hardware.topologies.node_network import (
    adapters_of,
    host_network,
    node_network,
    scale_up_network,
)
from wattree.hardware.topologies.torus import slice_shape, torus


def network_of(cluster: Cluster) -> Network:
    """Return the links of a cluster.

    Device r is `d{r}`. What belongs to a node is called as in `node_network` with `@` and the
    node's number behind it: `nic3@0`, `cpu0@12`. The latency of the fabric's switches and of the
    adapters is on the links of the adapters, so that a message between nodes pays both once.

    Raises:
        HardwareError: Nodes cannot reach each other: no adapters, or a fabric of kind `none`.
    """
    node, devices = cluster.node, cluster.node.devices
    parts: list[Network] = []
    size = cluster.domain_devices
    own_fabric = node.links or node.scale_up.kind == "pcie" or devices == 1
    if size > devices or (size < devices and not own_fabric):
        parts += _spanning_domains(cluster)
        inside = host_network(node)
    else:
        inside = node_network(node)
    parts += [_placed(inside, number, devices) for number in range(cluster.nodes)]
    if cluster.nodes > 1:
        parts += _between_nodes(cluster)
    whole = join(parts)
    if node.cxl is None:
        return whole
    return with_memory_tier(
        whole,
        [f"cpu0@{number}" for number in range(cluster.nodes)],
        bandwidth_bytes_per_s=node.cxl.bandwidth_bytes_per_s,
        latency_s=node.cxl.latency_s,
        pooled=node.cxl.pooled,
    )


def _placed(network: Network, number: int, devices: int) -> Network:
    own = {device_name(local): device_name(number * devices + local) for local in range(devices)}
    return renamed(network, lambda name: own.get(name, f"{name}@{number}"))


def _spanning_domains(cluster: Cluster) -> Iterator[Network]:
    """Yield the fast links of each domain where domains are not the nodes."""
    size = cluster.domain_devices
    for domain in range(cluster.pool.domains if size > 1 else 0):
        devices = range(domain * size, min((domain + 1) * size, cluster.devices))
        members = [device_name(device) for device in devices]
        yield scale_up_network(cluster.node.scale_up, members, name=f"nvswitch{domain}")


def _between_nodes(cluster: Cluster) -> Iterator[Network]:
    """Yield the fabric of the cluster, or nothing where one domain already joins all nodes."""
    node, fabric = cluster.node, cluster.fabric
    count, rate = adapters_of(node)
    if count == 0 or fabric.kind == "none":
        if cluster.domain_devices < cluster.devices:
            raise HardwareError(
                f"{cluster.nodes} nodes of {node.name} on fabric {fabric.name}: nothing joins "
                "them; give the node adapters and a fabric that is not 'none'"
            )
        return
    adapters = [
        [f"nic{index}@{number}" for index in range(count)] for number in range(cluster.nodes)
    ]
    latency = node.nic_latency_s + fabric.switch_latency_s
    yield _fabric_network(fabric, adapters, rate, latency)


def _fabric_network(
    fabric: Fabric, adapters: list[list[str]], rate: float, latency_s: float
) -> Network:
    if fabric.kind == "dragonfly":
        return dragonfly(
            adapters,
            bandwidth_bytes_per_s=rate,
            latency_s=latency_s,
            group_nodes=fabric.leaf_nodes,
            oversubscription=fabric.oversubscription,
        )
    if fabric.kind == "torus":
        return _node_torus(adapters, rate, latency_s)
    return fat_tree(
        adapters,
        bandwidth_bytes_per_s=rate,
        latency_s=latency_s,
        leaf_nodes=fabric.leaf_nodes,
        oversubscription=fabric.oversubscription,
        rails=fabric.kind == "rail-optimised",
    )


def _node_torus(adapters: list[list[str]], rate: float, latency_s: float) -> Network:
    """Return routers on a 3-D torus, one for each node, fed by the node's adapters."""
    routers = [f"router{number}" for number in range(len(adapters))]
    injection = fat_tree(adapters, bandwidth_bytes_per_s=rate, latency_s=latency_s, leaf_nodes=1)
    shape = slice_shape(len(routers), [len(routers)] * 3)
    grid = torus(
        routers,
        shape=shape,
        wraps=[True] * 3,
        # Each cable of a router carries what its adapters inject: 6 cables in all.
        bandwidth_bytes_per_s=6 * rate * max(len(adapters[0]), 1),
        latency_s=0.0,
        kind="network",
    )
    leaves = Network(
        links=tuple(link for link in injection.links if "spine" not in {link.source, link.target})
    )
    names = {f"leaf{number}": router for number, router in enumerate(routers)}
    return join([renamed(leaves, lambda name: names.get(name, name)), grid])
