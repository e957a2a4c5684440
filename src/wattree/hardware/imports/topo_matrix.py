"""The table that `nvidia-smi topo -m` prints.

Every cell states the connection of two devices or adapters: `NV#` over that many NVLinks, `PIX`
through one PCIe bridge, `PXB` through several, `PHB` through the host bridge, `NODE` through the
interconnect of one NUMA node, `SYS` through that of the sockets (legend of the table itself).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path

from wattree.hardware.imports.rates import MOST_NVLINKS
from wattree.hardware.imports.topo_table import TopoTable, read_topo_table
from wattree.hardware.imports.topology import ImportedTopology
from wattree.hardware.network import Link, cable
from wattree.hardware.topologies.join import device_name, without_forwarding

#: From near to far: the vertex that joins what is this close. SOC is what old drivers call SYS.
_LEVELS = (("PIX", "pcie"), ("PXB", "pxb"), ("PHB", "bridge"), ("NODE", "cpu"))


def from_topo_matrix(
    path: str | Path,
    *,
    nvlink_bytes_per_s: float,
    pcie_bytes_per_s: float,
    socket_bytes_per_s: float,
) -> ImportedTopology:
    """Return the node that a saved `nvidia-smi topo -m` shows.

    The table has no rates, so the caller gives them. Where the cells of a device add up to more
    links than it can have, all of them lead to a switch, which then stands for all its chips.

    Args:
        nvlink_bytes_per_s: Of one NVLink, one direction. [B/s]
        pcie_bytes_per_s: Of a slot, one direction. [B/s]
        socket_bytes_per_s: Between two sockets, one direction. [B/s]

    Raises:
        JobError: The file cannot be read or holds no such table; all problems are listed.
    """
    table = read_topo_table(path)
    devices = [index for index, name in enumerate(table.names) if name.startswith("GPU")]
    vertices = _vertices(table, devices)
    links = _nvlinks(table, devices, vertices, nvlink_bytes_per_s)
    direct = any(link.target.startswith("d") and link.source.startswith("d") for link in links)
    links += _tree(table, vertices, pcie_bytes_per_s, socket_bytes_per_s)
    return ImportedTopology(
        network=without_forwarding(links, () if direct else [vertices[i] for i in devices]),
        devices=len(devices),
        adapter_bytes_per_s={},
    )


def _vertices(table: TopoTable, devices: list[int]) -> dict[int, str]:
    names = {index: device_name(place) for place, index in enumerate(devices)}
    others = [index for index in range(len(table.names)) if index not in names]
    return names | {index: f"nic{place}" for place, index in enumerate(others)}


def _nvlinks(
    table: TopoTable, devices: list[int], vertices: Mapping[int, str], rate: float
) -> list[Link]:
    counts = {
        (one, other): int(cell[2:])
        for one, other in combinations(devices, 2)
        if (cell := table.cell(one, other) or "").startswith("NV")
    }
    links: list[Link] = []
    switched: dict[int, int] = {}
    for device in devices:
        own = [count for pair, count in counts.items() if device in pair]
        if sum(own) > MOST_NVLINKS:
            switched[device] = max(own)
    for device, count in switched.items():
        links += cable(vertices[device], "nvswitch0", count * rate, kind="nvlink")
    for (one, other), count in counts.items():
        if one not in switched or other not in switched:
            links += cable(vertices[one], vertices[other], count * rate, kind="nvlink")
    return links


def _tree(table: TopoTable, vertices: Mapping[int, str], slot: float, socket: float) -> list[Link]:
    """Return the host side: at each level, a vertex over what the cells put together."""
    links: list[Link] = []
    tops: dict[int, str] = dict(vertices)  # vertex under which each position hangs so far
    near: set[str] = set()
    for level, prefix in _LEVELS:
        near.add(level)
        groups = _groups(table, len(tops), lambda one, other: _is_near(table, near, one, other))
        for number, members in enumerate(groups):
            below = list(dict.fromkeys(tops[index] for index in members))
            if len(below) == 1 and prefix != "cpu":
                continue
            above = f"{prefix}{number}"
            for name in below:
                links += cable(name, above, slot, kind="pcie")
            tops.update(dict.fromkeys(members, above))
    for one, other in combinations(list(dict.fromkeys(tops.values())), 2):
        links += cable(one, other, socket, kind="sockets")
    return links


def _is_near(table: TopoTable, near: set[str], one: int, other: int) -> bool:
    if table.cell(one, other) in near:
        return True
    same_numa = table.numa.get(one) is not None and table.numa.get(one) == table.numa.get(other)
    return "NODE" in near and same_numa


def _groups(table: TopoTable, count: int, is_near: Callable[[int, int], bool]) -> list[list[int]]:
    """Return the positions that are near each other, directly or through others."""
    group = list(range(count))
    for one, other in combinations(range(len(table.names)), 2):
        if is_near(one, other):
            old, new = group[other], group[one]
            group = [new if each == old else each for each in group]
    return [[i for i in range(count) if group[i] == key] for key in dict.fromkeys(group)]
