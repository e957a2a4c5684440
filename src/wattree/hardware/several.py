"""Nodes with some number of one device, made of a catalog node with another number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from wattree.files import read_yaml
from wattree.units import parse_quantity

#: `2x-rtx-4090`: so many of a device.
_SEVERAL = re.compile(r"([1-9])x-(.+)")
#: More than these share sockets and switches in ways that differ by server.
_MOST: Final = 4
#: Devices of most nodes.
_OF_A_NODE: Final = 8
#: Of switches and sockets: how fewer devices share them is not known.
_SHARED = ("devices_per_switch", "sockets", "socket_bandwidth")
_SOURCE = "estimate: as the name of the node says"


def several(name: str) -> tuple[int, str] | None:
    """Return number and device of a node's name such as `2x-rtx-4090`; None for other names."""
    found = _SEVERAL.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def part_of_a_node(count: int) -> str:
    """Return how a job has `count` of a node's devices; empty where most nodes have no more."""
    devices = "0" if count == 1 else f"0-{count - 1}"
    words = f"; for {count} of a node's devices, the job has place: {{devices: {devices}}}"
    return words if 0 < count < _OF_A_NODE else ""


def node_of(folder: Path, count: int, device: str) -> tuple[Path, Mapping[str, Any]] | None:
    """Return the file and content of a node with `count` of a device.

    One of the folder that has so many, else, up to four, one of those with a single card, or with
    several on PCIe. None: it has neither.
    """
    held = list(_holding(folder, device))
    for path, node in held:
        if node["devices"]["value"] == count:
            return path, node
    usable = [each for each in held if each[1]["scale_up"]["kind"] == "pcie"]
    if count > _MOST or not usable:
        return None
    path, node = min(usable, key=lambda each: int(each[1]["devices"]["value"]))
    return path, _with_devices(node, count)


def names_with(folder: Path, device: str) -> list[str]:
    """Return the names of nodes with a device."""
    held = list(_holding(folder, device))
    on_pcie = any(node["scale_up"]["kind"] == "pcie" for _, node in held)
    more = [f"{count}x-{device}" for count in range(1, _MOST + 1)] if on_pcie else []
    return sorted({*more, *(path.stem for path, _ in held)})


def _holding(folder: Path, device: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    line = re.compile(rf"^device: {re.escape(device)}$", re.MULTILINE)
    for path in sorted(folder.glob("*.yaml")):
        if line.search(path.read_text(encoding="utf-8")):
            yield path, read_yaml(path)


def _with_devices(node: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return a node's file with `count` devices, and no more of the host than they need."""
    number = {"value": count, "source": _SOURCE}
    scale_up = {key: value for key, value in node["scale_up"].items() if key not in _SHARED}
    most = int(node["devices"]["value"])
    share = min(count / most, 1.0)
    host = dict(node["host"])
    for key in ("idle", "busy"):
        watts = parse_quantity(host[key]["value"], "w") * share
        host[key] = {"value": f"{watts:g} W", "source": f"estimate: that of {most}, by number"}
    return {
        **{key: value for key, value in node.items() if key != "aliases"},
        "name": f"{count}x-{node['device']}",
        "title": f"{count} x {node['device']} on PCIe, else as {node['name']}",
        "devices": number,
        "scale_up": {**scale_up, "domain_devices": number},
        "host": host if share < 1.0 else node["host"],
        "price": None,  # that of another number of devices
    }
