"""One switch that joins devices: NVSwitch, NVLink domains of a rack."""

from __future__ import annotations

from collections.abc import Sequence

from wattree.errors import HardwareError
from wattree.hardware.network import Network, cable
from wattree.hardware.topologies.join import without_forwarding

_KIND = "nvlink"  # of links to such a switch


def switch_fabric(
    devices: Sequence[str],
    *,
    bandwidth_bytes_per_s: float,
    latency_s: float,
    name: str = "nvswitch0",
) -> Network:
    """Return devices with one port each on a switch that never blocks.

    The chips behind the ports count as one switch: every device spreads its links over all of
    them, so any pair communicates at the full rate of a port [1].

    Args:
        devices: Names of the vertices.
        bandwidth_bytes_per_s: All links of one device together, one direction. [B/s]
        latency_s: From device to device; half of it on each of the two links. [s]

    References:
        [1] NVIDIA, DGX A100 System Architecture, whitepaper WP-10083, 2020, "NVSwitch".
    """
    if not devices:
        raise HardwareError(f"switch {name}: no device to join; give at least one")
    links = [
        link
        for device in devices
        for link in cable(
            device, name, bandwidth_bytes_per_s, latency_s=latency_s / 2, kind="nvlink"
        )
    ]
    return without_forwarding(links, devices)
