"""Dragonflies: groups of switches, every group cabled to every other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from wattree.errors import HardwareError
from wattree.hardware.network import Link, Network, cable


def dragonfly(
    adapters: Sequence[Sequence[str]],
    *,
    bandwidth_bytes_per_s: float,
    latency_s: float,
    group_nodes: int,
    global_bandwidth_bytes_per_s: float | None = None,
    oversubscription: float = 1.0,
    switches: int = 1,
    local_bandwidth_bytes_per_s: float | None = None,
) -> Network:
    """Return groups whose switches are fully meshed, joined by global links, one for each pair.

    With one switch to a group the group counts as one switch that never blocks: the routing of
    such machines is adaptive and spreads traffic over all switches of a group [1]. With several,
    global links take turns at the switches and routes are minimal.

    Args:
        adapters: For each node, the names of its adapters; nodes fill groups in order, adapters
            the switches of a group in order.
        bandwidth_bytes_per_s: Line rate of one adapter, one direction. [B/s]
        latency_s: From adapter to adapter; half on the link of each. [s]
        group_nodes: Nodes in one group.
        global_bandwidth_bytes_per_s: Between two groups, one direction; None for the rate of a
            group's adapters over `oversubscription`, split evenly over the other groups. [B/s]
        oversubscription: Rate into a full group over the rate of all its global links.
        switches: In one group.
        local_bandwidth_bytes_per_s: Between two switches of a group; that of an adapter if None.

    Raises:
        HardwareError: A group holds no node or no switch.

    References:
        [1] D. De Sensi et al., An In-Depth Analysis of the Slingshot Interconnect, SC 2020.
    """
    if group_nodes < 1 or switches < 1 or not oversubscription >= 1:
        raise HardwareError(
            f"dragonfly: {group_nodes} nodes and {switches} switches to a group, oversubscription "
            f"{oversubscription:g}; all start at 1"
        )
    groups = -(-len(adapters) // group_nodes)
    links: list[Link] = []
    for group in range(groups):
        members = adapters[group * group_nodes : (group + 1) * group_nodes]
        names = [name for node in members for name in node]
        for index, name in enumerate(names):
            switch = _switch(group, index * switches // len(names), switches)
            links += cable(name, switch, bandwidth_bytes_per_s, latency_s=latency_s / 2)
        local = local_bandwidth_bytes_per_s or bandwidth_bytes_per_s
        mesh = [_switch(group, index, switches) for index in range(switches)]
        for one, other in combinations(mesh, 2):
            links += cable(one, other, local)
    rate = global_bandwidth_bytes_per_s
    if rate is None:
        into = max(sum(map(len, adapters[:group_nodes])), 1) * bandwidth_bytes_per_s
        rate = into / oversubscription / max(groups - 1, 1)
    return Network(links=(*links, *_between_groups(groups, switches, rate)))


def _between_groups(groups: int, switches: int, rate: float) -> Iterator[Link]:
    for one, other in combinations(range(groups), 2):
        # Peer number k of a group hangs on its switch k, so that the links are spread.
        near = _switch(one, (other - 1) % switches, switches)
        far = _switch(other, one % switches, switches)
        yield from cable(near, far, rate)


def _switch(group: int, switch: int, switches: int) -> str:
    return f"group{group}" if switches == 1 else f"group{group}.{switch}"
