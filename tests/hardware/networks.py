"""Paths and links of a network."""

from __future__ import annotations

from wattree.hardware import (
    Network,
)
from wattree.hardware.topologies import (
    device_name,
)

__all__ = ["leaving", "names", "route"]


def names(count: int) -> list[str]:
    """Return device names."""
    return [device_name(device) for device in range(count)]


def route(network: Network, source: str, target: str) -> list[str]:
    """Return the names of the links from one vertex to another."""
    return [network.links[index].name for index in network.path(source, target)]


def leaving(network: Network, vertex: str, kind: str | None = None) -> float:
    """Return the rate of all links out of a vertex. [B/s]"""
    return sum(
        link.bandwidth_bytes_per_s
        for link in network.links
        if link.source == vertex and kind in {None, link.kind}
    )
