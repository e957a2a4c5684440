"""Dragonflies: groups of nodes, every group cabled to every other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from wattree.errors import HardwareError
from wattree.hardware.network import Link, Network, cable


def dragonfly(
    adapters: Sequence[Sequence[str]],
    *,
    bandwidth_bytes_per_s: float,
    latency_s: float,
    group_nodes: int,
    oversubscription: float = 1.0,
) -> Network:
    """Return groups of nodes, joined by global links, one for each pair.

    A group counts as one switch that never blocks: the routing of such machines is adaptive and
    spreads traffic over all switches of a group [1]. A group's adapters' rate over
    `oversubscription` is split evenly over its links to the other groups.

    Args:
        adapters: For each node, the names of its adapters; nodes fill groups in order.
        bandwidth_bytes_per_s: Line rate of one adapter, one direction. [B/s]
        latency_s: From adapter to adapter; half on the link of each. [s]
        oversubscription: Rate into a full group over the rate of all its global links.

    Raises:
        HardwareError: A group holds no node.

    References:
        [1] D. De Sensi et al., An In-Depth Analysis of the Slingshot Interconnect, SC 2020.
    """
    if group_nodes < 1 or not oversubscription >= 1:
        raise HardwareError(
            f"dragonfly: {group_nodes} nodes to a group, oversubscription {oversubscription:g}; "
            "both start at 1"
        )
    links: list[Link] = []
    for number, names in enumerate(adapters):
        for name in names:
            group = f"group{number // group_nodes}"
            links += cable(name, group, bandwidth_bytes_per_s, latency_s=latency_s / 2)
    groups = -(-len(adapters) // group_nodes)
    into = max(sum(map(len, adapters[:group_nodes])), 1) * bandwidth_bytes_per_s
    rate = into / oversubscription / max(groups - 1, 1)
    for one, other in combinations(range(groups), 2):
        links += cable(f"group{one}", f"group{other}", rate)
    return Network(links=tuple(links))
