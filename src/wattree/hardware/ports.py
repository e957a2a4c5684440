"""Adapters of nodes at switch ports: the rate that both settle on, and the part of a port."""

from __future__ import annotations

from dataclasses import replace

from wattree.hardware.cluster import Fabric
from wattree.hardware.node import Node

#: Lanes of a port, each of which can be one of its own (InfiniBand Trade Association roadmap;
#: IEEE 802.3: 100GBASE-SR4, 200GBASE-DR4, 400GBASE-DR4). They are split in two or in four.
_LANES = 4


def attached(node: Node, fabric: Fabric) -> Node:
    """Return `node` with adapters at the rate negotiated with the ports of `fabric`.

    Both ends of a cable run at the lower of their rates, as link training and auto-negotiation
    settle it.
    """
    rate, port = node.nic_bandwidth_bytes_per_s, fabric.port_bytes_per_s
    if port is None or port >= rate:
        return node
    return replace(node, nic_bandwidth_bytes_per_s=port)


def port_share(node: Node, fabric: Fabric) -> float:
    """Return the part of a switch port that an adapter takes: slower ones share one by its lanes.

    Args:
        node: As `attached` has it.
    """
    port = fabric.port_bytes_per_s
    if port is None:
        return 1.0
    adapters = min(port // node.nic_bandwidth_bytes_per_s, _LANES)
    return 1.0 / {3.0: 2.0}.get(adapters, max(adapters, 1.0))
