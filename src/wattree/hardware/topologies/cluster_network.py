"""Networks of a node (fast links, its own links, the host) and of a cluster with all between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wattree.errors import HardwareError
from wattree.hardware.cluster import Cluster, Fabric
from wattree.hardware.network import Link, Network, cable
from wattree.hardware.node import Node, ScaleUp
from wattree.hardware.topologies.cube_mesh import cube_mesh
from wattree.hardware.topologies.dragonfly import dragonfly
from wattree.hardware.topologies.fat_tree import fat_tree
from wattree.hardware.topologies.host_tree import host_tree
from wattree.hardware.topologies.join import device_name, join, renamed, without_forwarding
from wattree.hardware.topologies.memory_tier import with_memory_tier
from wattree.hardware.topologies.mesh import full_mesh
from wattree.hardware.topologies.switch import switch_fabric
from wattree.hardware.topologies.torus import ring, slice_shape, torus


def node_network(node: Node) -> Network:
    """Return the links inside one node, between `d0`, `d1`, …, `nic0`, …, `pcie0`, … and `cpu0`, ….

    The fast links stand first, so that a route over them wins among equals.
    """
    devices = [device_name(device) for device in range(node.devices)]
    host = host_network(node)
    if node.links:
        return join([explicit_network(node, devices), host])
    if node.scale_up.kind == "pcie" or node.devices == 1:
        return host
    return join([scale_up_network(node.scale_up, devices), host])


def adapters_of(node: Node) -> tuple[int, float]:
    """Return how many adapter vertices a node has, and the rate of each.

    Several adapters of one device count as one with their rates added: collectives spread their
    channels over all of them.
    """
    together = max(node.nics // node.devices, 1)
    if node.nics % node.devices:
        together = 1
    return node.nics // together, node.nic_bandwidth_bytes_per_s * together


def scale_up_network(
    scale_up: ScaleUp, devices: Sequence[str], *, name: str = "nvswitch0"
) -> Network:
    """Return the fast links among devices of one domain, without the host.

    Args:
        devices: Of the domain, in order.
        name: Of the switch, where there is one.
    """
    rate, latency = scale_up.bandwidth_bytes_per_s, scale_up.latency_s
    if scale_up.kind == "torus" and scale_up.shape is not None:
        shape = slice_shape(len(devices), scale_up.shape, scale_up.wrap_unit)
        return torus(
            devices,
            shape=shape,
            wraps=[length % scale_up.wrap_unit == 0 for length in shape],
            bandwidth_bytes_per_s=rate,
            latency_s=latency,
        )
    if scale_up.kind == "cube-mesh" and len(devices) == 8:
        return cube_mesh(devices, bandwidth_bytes_per_s=rate, latency_s=latency)
    if scale_up.kind in {"ring", "torus"}:
        if scale_up.domain_devices == 2:  # both links of a device end at the only other one
            rate *= 2.0
        return ring(devices, bandwidth_bytes_per_s=rate, latency_s=latency)
    if scale_up.kind in {"mesh", "cube-mesh"}:
        return full_mesh(devices, bandwidth_bytes_per_s=rate, latency_s=latency)
    return switch_fabric(devices, bandwidth_bytes_per_s=rate, latency_s=latency, name=name)


def explicit_network(node: Node, devices: Sequence[str]) -> Network:
    """Return a node's own links. Devices pass traffic on where they are cabled to each other."""
    direct = any(link.source in devices and link.target in devices for link in node.links)
    return Network(links=node.links) if direct else without_forwarding(node.links, devices)


def host_network(node: Node) -> Network:
    """Return PCIe, sockets and adapters of a node, less what its own links already place."""
    scale_up = node.scale_up
    devices = [device_name(device) for device in range(node.devices)]
    through_host = scale_up.kind == "pcie"
    adapters, rate = adapters_of(node)
    tree = host_tree(
        devices,
        bandwidth_bytes_per_s=(
            scale_up.bandwidth_bytes_per_s if through_host else node.device.host_link_bytes_per_s
        ),
        latency_s=scale_up.latency_s if through_host else 0.0,
        devices_per_switch=scale_up.devices_per_switch,
        sockets=scale_up.sockets,
        socket_bandwidth_bytes_per_s=scale_up.socket_bandwidth_bytes_per_s,
        adapters=adapters,
        adapter_bandwidth_bytes_per_s=rate,
        adapters_on_devices=scale_up.adapters_on_devices,
    )
    placed = {link.source for link in node.links} | {link.target for link in node.links}
    if any(name.startswith("cpu") for name in placed):
        return _only_missing(placed, adapters, rate)
    links = [
        link
        for link in tree.links
        if not (link.source.startswith("nic") and link.source in placed)
        and not (link.target.startswith("nic") and link.target in placed)
    ]
    return without_forwarding(links, devices)


def _only_missing(placed: set[str], adapters: int, rate: float) -> Network:
    """Return links for adapters that a complete description of the host leaves out."""
    links: list[Link] = []
    for adapter in range(adapters):
        if f"nic{adapter}" not in placed:
            links += cable(f"nic{adapter}", "cpu0", rate, kind="pcie")
    return without_forwarding(links, ())


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
