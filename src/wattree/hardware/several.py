"""Nodes with some number of one device, made of a catalog node with another number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

#: `2x-rtx-4090`: so many of a device.
_SEVERAL = re.compile(r"([1-8])x-(.+)")
#: Nodes of the catalog that hold one device, or eight or four on PCIe.
BASES: Final = ("workstation-{}", "8x-{}", "4x-{}")
#: Of switches and sockets: how fewer or more devices share them is not known.
_SHARED = ("devices_per_switch", "sockets", "socket_bandwidth")
_SOURCE = "estimate: as the name of the node says"


def several(name: str) -> tuple[int, str] | None:
    """Return number and device of a node's name such as `2x-rtx-4090`; None for other names."""
    found = _SEVERAL.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def with_devices(node: Mapping[str, Any], count: int) -> dict[str, Any] | None:
    """Return a node's file with `count` devices; None if they are not joined by PCIe alone."""
    scale_up = node["scale_up"]
    if scale_up["kind"] != "pcie":
        return None
    number = {"value": count, "source": _SOURCE}
    kept = {key: value for key, value in scale_up.items() if key not in _SHARED}
    device = node["device"]
    return {
        **{key: value for key, value in node.items() if key != "aliases"},
        "name": f"{count}x-{device}",
        "title": f"{count} x {device} on PCIe, else as {node['name']}",
        "devices": number,
        "scale_up": {**kept, "domain_devices": number},
        "price": None,  # that of another number of devices
    }
