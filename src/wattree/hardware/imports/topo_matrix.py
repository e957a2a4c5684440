"""The table that `nvidia-smi topo -m` prints.

Every cell says how two devices or adapters are joined: `NV#` over that many NVLinks, `PIX` through
one PCIe bridge, `PXB` through several, `PHB` through the host bridge, `NODE` through the
interconnect of one NUMA node, `SYS` through that of the sockets (legend of the table itself).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from wattree.errors import JobError
from wattree.files import read_text
from wattree.hardware.imports.topology import ImportedTopology
from wattree.hardware.network import Link, cable
from wattree.hardware.topologies.join import device_name, without_forwarding

__all__ = ["from_topo_matrix"]

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NAME = re.compile(r"GPU\d+|NIC\d+|[a-z]+[\w.-]*\d[\w.-]*")
_CELL = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC")
_LEGEND = re.compile(r"\s*(NIC\d+):\s*(\S+)")
#: From near to far: the vertex that joins what is this close. SOC is what old drivers call SYS.
_LEVELS = (("PIX", "pcie"), ("PXB", "pxb"), ("PHB", "bridge"), ("NODE", "cpu"))


class _Table(NamedTuple):
    """Names in order, cells by pair of positions, NUMA node by position where it is known."""

    names: list[str]
    cells: dict[tuple[int, int], str]
    numa: dict[int, str]
    legend: dict[str, str]


def from_topo_matrix(
    path: str | Path,
    *,
    nvlink_bytes_per_s: float,
    pcie_bytes_per_s: float,
    socket_bytes_per_s: float,
    links_per_device: int = 18,
) -> ImportedTopology:
    """Return the node that a saved `nvidia-smi topo -m` shows.

    The table has no rates, so the caller gives them. Where the cells of a device add up to more
    links than it can have, all of them lead to a switch, which then stands for all its chips.

    Args:
        path: The saved output.
        nvlink_bytes_per_s: Of one NVLink, one direction. [B/s]
        pcie_bytes_per_s: Of a slot, one direction. [B/s]
        socket_bytes_per_s: Between two sockets, one direction. [B/s]
        links_per_device: NVLinks that a device has at most; 18 are the most of any so far.

    Raises:
        JobError: The file cannot be read or holds no such table.
    """
    table = _read(path)
    devices = [index for index, name in enumerate(table.names) if name.startswith("GPU")]
    vertices = _vertices(table, devices)
    links = _nvlinks(table, devices, vertices, nvlink_bytes_per_s, links_per_device)
    direct = any(link.target.startswith("d") and link.source.startswith("d") for link in links)
    links += _tree(table, vertices, pcie_bytes_per_s, socket_bytes_per_s)
    titles = {vertices[i]: table.legend.get(name, name) for i, name in enumerate(table.names)}
    return ImportedTopology(
        network=without_forwarding(links, () if direct else [vertices[i] for i in devices]),
        devices=len(devices),
        titles=titles,
        adapter_bytes_per_s={},
    )


def _read(path: str | Path) -> _Table:
    lines = _ESCAPE.sub("", read_text(path)).splitlines()
    starts = [line.split()[:2] for line in lines]
    # The head names GPU0 first; so does the row of GPU0, which goes on with X.
    head = next((i for i, two in enumerate(starts) if two[:1] == ["GPU0"] and "X" not in two), None)
    if head is None:
        raise JobError(
            str(path), ["found no head that begins with GPU0, expected `nvidia-smi topo -m`"]
        )
    names: list[str] = []
    for word in lines[head].split():
        if not _NAME.fullmatch(word):
            break  # CPU Affinity and what follows
        names.append(word)
    table = _Table(names, {}, {}, {})
    problems: list[str] = []
    for number, line in enumerate(lines[head + 1 :], start=head + 2):
        words = line.split()
        if words and words[0] in names:
            _read_row(table, words, number, problems)
        elif match := _LEGEND.match(line):
            table.legend[match[1]] = match[2]
    missing = [
        f"{names[one]} and {names[other]}"
        for one, other in combinations(range(len(names)), 2)
        if (one, other) not in table.cells and (other, one) not in table.cells
    ]
    if missing and not problems:
        problems.append(f"no cell joins {missing[0]}; expected a row for every name of the head")
    if problems:
        raise JobError(str(path), problems)
    return table


def _read_row(table: _Table, words: list[str], line: int, problems: list[str]) -> None:
    row = table.names.index(words[0])
    cells = words[1 : 1 + len(table.names)]
    wrong = [cell for cell in cells if not _CELL.fullmatch(cell)]
    if wrong or len(cells) < len(table.names):
        found = f"'{wrong[0][:20]}'" if wrong else f"{len(cells)} cells"
        problems.append(
            f"line {line}: row {words[0]}: found {found}, expected {len(table.names)} of X, NV#, "
            "PIX, PXB, PHB, NODE, SYS"
        )
        return
    table.cells.update({(row, column): cell for column, cell in enumerate(cells)})
    rest = words[1 + len(table.names) :]
    if len(rest) > 1 and rest[1].split("-")[0].isdigit():
        table.numa[row] = rest[1]


def _vertices(table: _Table, devices: list[int]) -> dict[int, str]:
    names = {index: device_name(place) for place, index in enumerate(devices)}
    others = [index for index in range(len(table.names)) if index not in names]
    return names | {index: f"nic{place}" for place, index in enumerate(others)}


def _nvlinks(
    table: _Table,
    devices: list[int],
    vertices: Mapping[int, str],
    rate: float,
    links_per_device: int,
) -> list[Link]:
    counts = {
        (one, other): int(cell[2:])
        for (one, other), cell in table.cells.items()
        if cell.startswith("NV") and one < other
    }
    links: list[Link] = []
    switched: dict[int, int] = {}
    for device in devices:
        own = [count for pair, count in counts.items() if device in pair]
        if sum(own) > links_per_device:
            switched[device] = max(own)
    for device, count in switched.items():
        links += cable(vertices[device], "nvswitch0", count * rate, kind="nvlink")
    for (one, other), count in counts.items():
        if one not in switched or other not in switched:
            links += cable(vertices[one], vertices[other], count * rate, kind="nvlink")
    return links


def _tree(table: _Table, vertices: Mapping[int, str], slot: float, socket: float) -> list[Link]:
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


def _is_near(table: _Table, near: set[str], one: int, other: int) -> bool:
    if table.cells.get((one, other), table.cells.get((other, one))) in near:
        return True
    same_numa = table.numa.get(one) is not None and table.numa.get(one) == table.numa.get(other)
    return "NODE" in near and same_numa


def _groups(table: _Table, count: int, is_near: Callable[[int, int], bool]) -> list[list[int]]:
    """Return the positions that are near each other, directly or through others."""
    group = list(range(count))
    for one, other in combinations(range(len(table.names)), 2):
        if is_near(one, other):
            old, new = group[other], group[one]
            group = [new if each == old else each for each in group]
    return [[i for i in range(count) if group[i] == key] for key in dict.fromkeys(group)]
