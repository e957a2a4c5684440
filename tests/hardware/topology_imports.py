"""Topologies read from files."""

from __future__ import annotations

from pathlib import Path

from wattree.hardware import Network
from wattree.hardware.topologies.cube_mesh import CUBE_MESH_LINKS

__all__ = ["CUBE", "FILES", "changed", "route", "widths"]

FILES = Path(__file__).parent / "topology_files"


def route(network: Network, source: str, target: str) -> list[str]:
    """Return the names of the links from one vertex to another."""
    return [network.links[index].name for index in network.path(source, target)]


def widths(network: Network) -> dict[tuple[int, int], float]:
    """Return the rates of the links between devices, by pair. [B/s]"""
    return {
        (int(link.source[1:]), int(link.target[1:])): link.bandwidth_bytes_per_s
        for link in network.links
        if link.source[0] == link.target[0] == "d"
    }


CUBE = {
    pair: 25e9 * count
    for (one, other), count in CUBE_MESH_LINKS.items()
    for pair in ((one, other), (other, one))
}


def changed(tmp_path: Path, name: str, old: str, new: str) -> Path:
    """Return the path of a file of which one place is changed."""
    text = (FILES / name).read_text()
    assert old in text
    path = tmp_path / name
    path.write_text(text.replace(old, new, 1))
    return path
