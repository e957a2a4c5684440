"""The cluster of a row, from the catalog, with the fabric that its source states."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

from wattree.errors import UnknownNameError
from wattree.hardware import Cluster, Fabric, Node, Site
from wattree.hardware.load import (
    default_fabric_name,
    load_device,
    load_fabric,
    load_node,
    load_site,
)
from wattree.hardware.names import canonical_name, device_names
from wattree.hardware.several import nodes_naming
from wattree.validation.cells import Cells

_GBIT_PER_S = 1e9 / 8
_GB = 1e9
#: Between printed memory, in GB or GiB, and that of the device that is meant: another would be off
#: by a third.
_MEMORY_TOLERANCE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Network adapters of a node as a source states them, in place of the catalog's.

    Attributes:
        count: Adapters per node.
        gbit_per_s: Line rate of each. [Gbit/s]
        source: Who says so; an assumption if no one does.
    """

    count: int
    gbit_per_s: float
    source: str


#: Rows are about time and memory; where the machine stands does not matter to them.
_SITE = "default"


def row_cluster(
    cells: Cells, *, adapters: Adapters | None = None, through_host: bool = False
) -> Cluster:
    """Return the cluster of a row.

    Args:
        cells: The row.
        adapters: In place of the catalog's, where the source states or the convention says.
        through_host: Devices of a node reach each other through host memory alone, whatever links
            there are (`NCCL_P2P_DISABLE=1`).

    Raises:
        RowError: No node of the catalog is the row's, or its devices do not fill whole nodes.
    """
    row, devices = cells.row, cells.whole("n_accel")
    per_node = cells.or_assume("accel_per_node", min(8, devices))
    found = _node_name(cells, per_node)
    node, fabric = _from_catalog(found)
    node = _with_adapters(_with_devices(node, min(per_node, devices)), adapters)
    if through_host and node.devices > 1:
        cells.assume("NCCL_P2P_DISABLE=1: devices reach each other through host memory")
        node = _through_host(node)
    if devices < per_node:
        cells.assume(f"one node with {devices} of its {per_node} devices in use")
    if devices % node.devices:
        raise cells.refusal(f"{devices} devices do not fill whole nodes of {node.devices}")
    if devices > node.devices:
        _note_network(cells, node, adapters)
    limit_w = row.power_limit_w
    return Cluster(
        node=node,
        nodes=devices // node.devices,
        fabric=fabric,
        site=_site(),
        power_limit_w=limit_w if limit_w and limit_w < node.device.tdp_w else None,
    )


def _node_name(cells: Cells, per_node: int) -> str:
    """Return the catalog's node of a row: of its device, and of as many or the next more of them.

    Raises:
        RowError: The catalog has no such device, or no node with so many.
    """
    device = device_name(cells)
    sized: list[tuple[int, str]] = []
    for like in (_nodes_of(device), _nodes_near(device)):
        sized = sized or [(devices, name) for devices, name in like if devices >= per_node]
    if not sized:
        raise cells.refusal(f"no catalog node holds {per_node} x {device}")
    return min(sized, key=lambda each: (each[0], not each[1].startswith("dgx"), each[1]))[1]


def device_name(cells: Cells) -> str:
    """Return the catalog's name of a row's device, by its name and memory as printed."""
    row = cells.row
    names = [row.accelerator]
    if row.accel_mem_gb:
        names.insert(0, f"{row.accelerator}-{row.accel_mem_gb:g}GB")
    for name in names:
        with suppress(UnknownNameError):
            found = canonical_name("device", name)
            if _is_near(load_device(found).memory_bytes, row.accel_mem_gb):
                return found
    memory = f" with {row.accel_mem_gb:g} GB" if row.accel_mem_gb else ""
    raise cells.refusal(f"no catalog device is called {row.accelerator}{memory}")


def _is_near(memory_bytes: float, printed_gb: float | None) -> bool:
    """Return whether a device may be printed so: in GB or GiB, with what its driver keeps."""
    return not printed_gb or abs(memory_bytes / (printed_gb * _GB) - 1.0) < _MEMORY_TOLERANCE


@cache
def _nodes_of(device: str) -> tuple[tuple[int, str], ...]:
    """Return the catalog's nodes of one kind of device, each with how many it holds."""
    return tuple((_from_catalog(name)[0].devices, name) for name in nodes_naming(device))


@cache
def _nodes_near(name: str) -> tuple[tuple[int, str], ...]:
    """Return nodes of other boards of the same architecture, with as much memory."""
    device = load_device(name)
    return tuple(
        found
        for other in device_names()
        if (near := load_device(other)).architecture == device.architecture
        and near.memory_bytes == device.memory_bytes
        for found in _nodes_of(other)
    )


@cache  # reading a file costs more than expressing a row, and hundreds of rows share a node
def _from_catalog(node_name: str) -> tuple[Node, Fabric]:
    return load_node(node_name), load_fabric(default_fabric_name(node_name))


@cache
def _site() -> Site:
    return load_site(_SITE)


def _with_devices(node: Node, devices: int) -> Node:
    """Return a node with fewer devices; links that end at the node's edge still do."""
    inside = node.scale_up.domain_devices <= node.devices
    domain = min(devices, node.scale_up.domain_devices) if inside else node.scale_up.domain_devices
    return replace(node, devices=devices, scale_up=replace(node.scale_up, domain_devices=domain))


def _through_host(node: Node) -> Node:
    """Return a node whose devices exchange data over their host links."""
    rate = node.device.host_link_bytes_per_s
    scale_up = replace(node.scale_up, kind="pcie", bandwidth_bytes_per_s=rate)
    return replace(node, scale_up=scale_up, links=())


def _with_adapters(node: Node, adapters: Adapters | None) -> Node:
    if adapters is None:
        return node
    return replace(
        node,
        nics=adapters.count,
        nic_bandwidth_bytes_per_s=adapters.gbit_per_s * _GBIT_PER_S,
        sources={**node.sources, "nic_bandwidth_bytes_per_s": adapters.source},
    )


def _note_network(cells: Cells, node: Node, adapters: Adapters | None) -> None:
    rate = f"{node.nics} x {node.nic_bandwidth_bytes_per_s / _GBIT_PER_S:g} Gbit/s per node"
    if adapters is not None:
        cells.assume(f"network {rate} ({adapters.source})")
    elif cells.row.inter_node_link is None:
        cells.assume(f"network not stated: {rate}, as catalog node {node.name}")
