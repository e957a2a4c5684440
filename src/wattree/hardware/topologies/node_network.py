"""The fabric of one node: what its `scale_up` says, its own links, and the host around."""

from __future__ import annotations

from collections.abc import Sequence

from wattree.hardware.network import Link, Network, cable
from wattree.hardware.node import Node, ScaleUp
from wattree.hardware.topologies.cube_mesh import cube_mesh
from wattree.hardware.topologies.host_tree import host_tree
from wattree.hardware.topologies.join import device_name, join, without_forwarding
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
        return _only_missing(tree, placed, adapters, rate)
    links = [
        link
        for link in tree.links
        if not (link.source.startswith("nic") and link.source in placed)
        and not (link.target.startswith("nic") and link.target in placed)
    ]
    return without_forwarding(links, devices)


def _only_missing(tree: Network, placed: set[str], adapters: int, rate: float) -> Network:
    """Return links for adapters that a complete description of the host leaves out."""
    links: list[Link] = []
    for adapter in range(adapters):
        if f"nic{adapter}" not in placed:
            links += cable(f"nic{adapter}", "cpu0", rate, kind="pcie")
    return Network(links=tuple(links), forwards=tree.forwards)
