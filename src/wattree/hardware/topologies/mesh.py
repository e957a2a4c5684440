"""Devices that are cabled to each other without a switch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from wattree.hardware.network import Network, cable
from wattree.hardware.topologies.join import without_forwarding


def full_mesh(
    devices: Sequence[str],
    *,
    bandwidth_bytes_per_s: float,
    latency_s: float,
) -> Network:
    """Return every pair joined by its own cable, the rate of a device split evenly over its peers.

    So are MI300X (seven links of 64 GB/s), Gaudi 2 and 3 (three ports to each of seven peers), and
    four H100 or GH200 without a switch.

    Args:
        devices: Names of the vertices.
        bandwidth_bytes_per_s: All links of one device together, one direction. [B/s]
        latency_s: From device to device. [s]
    """
    share = bandwidth_bytes_per_s / max(len(devices) - 1, 1)
    widths = dict.fromkeys(combinations(range(len(devices)), 2), share)
    return cabled(devices, widths, latency_s=latency_s)


def cabled(
    devices: Sequence[str],
    bandwidth_bytes_per_s: Mapping[tuple[int, int], float],
    *,
    latency_s: float,
    kind: str = "mesh",
    forwards: bool = False,
) -> Network:
    """Return pairs of devices joined by cables of the rates given.

    Args:
        devices: Names of the vertices.
        bandwidth_bytes_per_s: Pair of positions in `devices` → rate of one direction. [B/s]
        latency_s: Of one cable. [s]
        forwards: Devices forward traffic of others.
    """
    links = [
        link
        for (one, other), rate in bandwidth_bytes_per_s.items()
        for link in cable(devices[one], devices[other], rate, latency_s=latency_s, kind=kind)
    ]
    return Network(links=tuple(links)) if forwards else without_forwarding(links, devices)
