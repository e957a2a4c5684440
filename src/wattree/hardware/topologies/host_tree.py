"""The host side of a node: PCIe switches, sockets, adapters."""

from __future__ import annotations

from collections.abc import Sequence

from wattree.hardware.network import Link, Network, cable
from wattree.hardware.topologies.join import without_forwarding


def host_tree(
    devices: Sequence[str],
    *,
    bandwidth_bytes_per_s: float,
    latency_s: float = 0.0,
    devices_per_switch: int = 1,
    sockets: int = 1,
    socket_bandwidth_bytes_per_s: float | None = None,
    adapters: int = 0,
    adapter_bandwidth_bytes_per_s: float = 1.0,
    adapters_on_devices: bool = False,
) -> Network:
    """Return the tree of PCIe: devices, switches, sockets, and adapters where their devices are.

    Adapter `nic{j}` serves an equal run of devices. It sits on the switch that holds them all, or
    else on the socket of the first.

    Args:
        devices: Names of the vertices, in slot order.
        bandwidth_bytes_per_s: Of one slot, one direction; a switch has one such link upwards. [B/s]
        latency_s: Between two devices; half of it on the link of each. [s]
        devices_per_switch: Neighbours that share a switch and its upward link.
        sockets: Host bridges `cpu0`, `cpu1`, …; devices are spread over them evenly.
        socket_bandwidth_bytes_per_s: Between two sockets, one direction; that of a slot if None.
            [B/s]
        adapter_bandwidth_bytes_per_s: Of the slot of an adapter, at least. [B/s]
        adapters_on_devices: Adapters are ports of the first device they serve, as on Gaudi.
    """
    links: list[Link] = []
    upward: list[Link] = []
    per_socket = -(-len(devices) // sockets)
    for start in range(0, len(devices), devices_per_switch):
        switch = f"pcie{start // devices_per_switch}"
        for device in devices[start : start + devices_per_switch]:
            links += cable(
                device, switch, bandwidth_bytes_per_s, latency_s=latency_s / 2, kind="pcie"
            )
        upward += cable(switch, f"cpu{start // per_socket}", bandwidth_bytes_per_s, kind="pcie")
    used = -(-len(devices) // per_socket)
    between = socket_bandwidth_bytes_per_s or bandwidth_bytes_per_s
    for one in range(used):
        for other in range(one + 1, used):
            upward += cable(f"cpu{one}", f"cpu{other}", between, kind="sockets")
    slot = max(bandwidth_bytes_per_s, adapter_bandwidth_bytes_per_s)
    for adapter in range(adapters):
        first = adapter * len(devices) // adapters
        last = max(first, ((adapter + 1) * len(devices) - 1) // adapters)
        place = f"cpu{first // per_socket}"
        if first // devices_per_switch == last // devices_per_switch:
            place = f"pcie{first // devices_per_switch}"
        if adapters_on_devices:
            place = devices[first]
        links += cable(f"nic{adapter}", place, slot, kind="pcie")
    # Adapters first: among routes of equal length those through the nearest adapter win.
    return without_forwarding([*links, *upward], devices)


def adapter_of(device: int, *, devices: int, adapters: int) -> int:
    """Return the first adapter that serves a device; several devices may share one."""
    return device * adapters // devices
