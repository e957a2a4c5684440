"""Trees of switches between nodes: leaf and spine, one leaf for all or one for each rail."""

from __future__ import annotations

from collections.abc import Sequence

from wattree.errors import HardwareError
from wattree.hardware.network import Link, Network, cable


def fat_tree(
    adapters: Sequence[Sequence[str]],
    *,
    bandwidth_bytes_per_s: float,
    latency_s: float,
    leaf_nodes: int,
    oversubscription: float = 1.0,
    rails: bool = False,
) -> Network:
    """Return leaf switches over the adapters of `leaf_nodes` nodes each, and a spine over them.

    The spine stands for all its switches at once, because flows are spread over them by hash or
    adaptively; a leaf has one uplink, whose rate is that of its adapters over the
    oversubscription. Traffic below one leaf meets no other link.

    Args:
        adapters: For each node, the names of its adapters.
        bandwidth_bytes_per_s: Line rate of one adapter, one direction. [B/s]
        latency_s: From adapter to adapter; half on the link of each. [s]
        oversubscription: Rate into a leaf from below over its rate upwards.
        rails: Adapter i of every node meets leaf i of its group, instead of one leaf for all.

    Raises:
        HardwareError: The oversubscription is below one, or `leaf_nodes` below one.
    """
    if not oversubscription >= 1 or leaf_nodes < 1:
        raise HardwareError(
            f"fat tree: oversubscription {oversubscription:g} and {leaf_nodes} nodes to a leaf; "
            "both start at 1"
        )
    links: list[Link] = []
    uplinks: list[Link] = []
    ports: dict[str, int] = {}
    for node, names in enumerate(adapters):
        for index, name in enumerate(names):
            leaf = f"leaf{node // leaf_nodes}" + (f".{index}" if rails else "")
            ports[leaf] = ports.get(leaf, 0) + 1
            links += cable(name, leaf, bandwidth_bytes_per_s, latency_s=latency_s / 2)
    if len(ports) > 1:
        for leaf, count in ports.items():
            uplinks += cable(leaf, "spine", count * bandwidth_bytes_per_s / oversubscription)
    # First, so that among routes of equal length the one over the spine wins against one through
    # the host to another adapter: adapters are read and written by the nearest devices.
    return Network(links=(*uplinks, *links))
