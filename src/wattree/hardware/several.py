"""Nodes with some number of one device, made of a catalog node with another number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from wattree.files import read_yaml
from wattree.hardware.alike import completed, with_devices
from wattree.hardware.description import Description
from wattree.hardware.names import CATALOG, FOLDERS

#: `2x-rtx-4090`, `8xH100`: so many of a device.
_SEVERAL = re.compile(r"([1-9])x-?(.+)")
#: More than these share sockets and switches in ways that differ by server.
_MOST: Final = 4
#: Devices of most nodes.
_OF_A_NODE: Final = 8
#: What is estimated by the power of the devices, so that fewer of them take less.
_OF_THE_DEVICES: Final = ("idle", "busy")
#: Slices of TPUs go by their cores, of which these have two a chip; others by their chips.
_BY_CORES: Final = ("v2", "v3", "v4", "v5p")
_SLICE = re.compile(r"(?:tpu-?)?(v\d+[a-z]*|7x)-(\d+)")


def several(name: str) -> tuple[int, str] | None:
    """Return number and device of a node's name such as `2x-rtx-4090`; None for other names."""
    found = _SEVERAL.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def part_of_a_node(count: int) -> str:
    """Return how a job has `count` of a node's devices; empty where most nodes have no more."""
    devices = "0" if count == 1 else f"0-{count - 1}"
    words = f"; for {count} of a node's devices, the job has place: {{devices: {devices}}}"
    return words if 0 < count < _OF_A_NODE else ""


def chips_of_slice(name: str) -> str:
    """Return how a job has a slice of TPUs by its name, such as `v4-128`; empty for other names."""
    found = _SLICE.fullmatch(name.replace("v5litepod", "v5e").replace("v6litepod", "v6e"))
    if not found:
        return ""
    version = "v7x" if found[1] == "7x" else found[1]
    chips = int(found[2]) // (2 if version in _BY_CORES else 1)
    host = CATALOG / FOLDERS["node"] / f"tpu-{version}-host.yaml"
    if not chips or not host.is_file():
        return ""
    held = int(read_yaml(host)["devices"]["value"])
    job = f"node: {host.stem}, nodes: {max(chips // held, 1)}"
    part = f", and {part_of_a_node(chips).split('has ')[1]}" if chips < held else ""
    return f"; {name} has {chips} chips: {job}{part}"


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
    share = min(count / int(node["devices"]["value"]), 1.0)
    found = with_devices(node, count, share=share, keys=_OF_THE_DEVICES)
    name, title = f"{count}x-{device}", f"{count} x {device} on PCIe, else as {node['name']}"
    return path, {**found, "name": name, "title": title, "price": None}


def names_with(folder: Path, device: str) -> list[str]:
    """Return the names of nodes with a device."""
    held = list(_holding(folder, device))
    on_pcie = any(node["scale_up"]["kind"] == "pcie" for _, node in held)
    more = [f"{count}x-{device}" for count in range(1, _MOST + 1)] if on_pcie else []
    return sorted({*more, *(path.stem for path, _ in held)})


def nodes_naming(device: str) -> list[str]:
    """Return the catalog's nodes whose files name a device, sorted.

    Those that are like another and of the same device are its sizes, and other names of it.
    """
    return [path.stem for path in _naming(CATALOG / FOLDERS["node"], device)]


def _holding(folder: Path, device: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    def read(folder: Path, name: str) -> Description:
        path = folder / f"{name}.yaml"
        return Description(path=path, mapping=read_yaml(path))

    for path in _naming(folder, device):
        yield path, completed(read(folder, path.stem), read).mapping


@cache  # jobs are read by the hundred, and catalogs have hundreds of nodes
def _naming(folder: Path, device: str) -> tuple[Path, ...]:
    line = re.compile(rf"^device: {re.escape(device)}$", re.MULTILINE)
    paths = sorted(folder.glob("*.yaml"))
    return tuple(path for path in paths if line.search(path.read_text(encoding="utf-8")))
