"""A second tier of memory, attached to hosts over CXL."""

from __future__ import annotations

from collections.abc import Sequence

from wattree.hardware.network import Link, Network, cable
from wattree.hardware.topologies.join import join


def with_memory_tier(
    network: Network,
    hosts: Sequence[str],
    *,
    bandwidth_bytes_per_s: float,
    latency_s: float,
    pooled: bool,
) -> Network:
    """Return the network with expanded memory attached to its hosts.

    Args:
        hosts: Vertices that the tier is attached to, such as `cpu0@3`.
        bandwidth_bytes_per_s: Of one host's link, one direction. [B/s]
        latency_s: Of one access. [s]
        pooled: One pool `cxl` for all hosts, instead of a memory `cxl0`, `cxl1`, … for each.
    """
    links: list[Link] = []
    for index, host in enumerate(hosts):
        tier = "cxl" if pooled else f"cxl{index}"
        links += cable(host, tier, bandwidth_bytes_per_s, latency_s=latency_s, kind="cxl")
    tiers = frozenset({link.target for link in links} - set(hosts))
    every = join([network, Network(links=tuple(links))])
    passing = frozenset(every.vertices) if every.forwards is None else every.forwards
    # A pool is memory, not a network: hosts do not reach each other through it.
    return Network(links=every.links, forwards=passing - tiers)
