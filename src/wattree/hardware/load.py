"""Hardware from YAML: the catalog that ships, and files of the same schema that users write.

A name is looked up in the catalog; what holds a slash or ends in `.yaml` is a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattree.errors import HardwareError, JobError, UnknownNameError
from wattree.files import read_yaml
from wattree.hardware.alike import completed
from wattree.hardware.cluster import Fabric, Site
from wattree.hardware.description import Description
from wattree.hardware.device import Device, Precision
from wattree.hardware.fields import CitedFigure, Fields
from wattree.hardware.host import read_host
from wattree.hardware.names import (
    CATALOG,
    FOLDERS,
    canonical_name,
    is_path,
    node_names,
    plain,
    unknown,
)
from wattree.hardware.node import ACCESS, MemoryTier, Node, ScaleUp
from wattree.hardware.several import chips_of_slice, names_with, node_of, part_of_a_node, several
from wattree.hardware.wiring import read_wiring
from wattree.units import JOULES_PER_KWH

_DEVICE_KINDS = ("cpu", "gpu", "npu", "tpu")
_SCALE_UP_KINDS = ("cube-mesh", "links", "mesh", "pcie", "ring", "switch", "torus")
_FABRIC_KINDS = ("dragonfly", "ethernet", "fat-tree", "none", "rail-optimised", "torus")
#: What a link to expanded memory starts from.
_ATTACHED = ("device", "host")

# The limits below are no facts, only the bounds of what can be meant.
_DEVICE_MEMORY = {
    "memory_bytes": CitedFigure("memory", "bytes", 2**28, 2**44),
    "memory_bandwidth_bytes_per_s": CitedFigure("memory_bandwidth", "bytes_per_s", 1e9, 1e15),
}
_DEVICE = {
    "vector_flop_per_s": CitedFigure("vector_peak", "flop_per_s", 1e9, 1e16),
    "compute_units": CitedFigure("compute_units", "count", 1, 100_000),
    "array_side": CitedFigure("array_side", "count", 8, 1024, is_optional=True),
    "cores": CitedFigure("cores", "count", 1, 64, is_optional=True),
    "host_link_bytes_per_s": CitedFigure("host_link", "bytes_per_s", 1e8, 1e13),
    "tdp_w": CitedFigure("tdp", "w", 1, 20_000),
    "idle_w": CitedFigure("idle", "w", 0, 20_000),
}
_ADAPTERS = {
    "nics": CitedFigure("nics", "count", 0, 1024),
    "nic_bandwidth_bytes_per_s": CitedFigure("nic_bandwidth", "bytes_per_s", 1e6, 1e13),
    "nic_latency_s": CitedFigure("nic_latency", "s", 0, 1),
}
_BILL = {
    "price_usd_per_s": CitedFigure("price", "usd_per_s", 0, 1000, may_be_unknown=True),
    "pue": CitedFigure("pue", "number", 1, 10, is_optional=True, may_be_unknown=True),
}
_FABRIC = {
    "oversubscription": CitedFigure("oversubscription", "number", 1, 1000),
    "leaf_nodes": CitedFigure("leaf_nodes", "count", 1, 1_000_000),
    "switch_latency_s": CitedFigure("switch_latency", "s", 0, 1),
    "switch_w_per_nic": CitedFigure("switch_power_per_nic", "w", 0, 10_000),
    "port_bytes_per_s": CitedFigure("port_bandwidth", "bytes_per_s", 1e6, 1e13, is_optional=True),
    "cabled_nodes": CitedFigure("cabled_nodes", "count", 1, 64, is_optional=True),
}
_SITE = {
    "pue": CitedFigure("pue", "number", 1, 10),
    "carbon_gco2e_per_j": CitedFigure(
        "carbon", "gco2e_per_j", 0, 5000 / JOULES_PER_KWH, may_be_unknown=True
    ),
    "energy_price_usd_per_j": CitedFigure(
        "energy_price", "usd_per_j", 0, 100 / JOULES_PER_KWH, may_be_unknown=True
    ),
}
_SCALE_UP = {
    "bandwidth_bytes_per_s": CitedFigure("bandwidth", "bytes_per_s", 1e8, 1e14),
    "latency_s": CitedFigure("latency", "s", 0, 1),
    "domain_devices": CitedFigure("domain_devices", "count", 1, 100_000),
}
_SWITCHED = {
    "devices_per_switch": CitedFigure("devices_per_switch", "count", 1, 64, is_optional=True),
    "sockets": CitedFigure("sockets", "count", 1, 64, is_optional=True),
}
_SOCKETS = {
    "socket_bandwidth_bytes_per_s": CitedFigure("socket_bandwidth", "bytes_per_s", 1e8, 1e13)
}
_TIER = {
    "pool_bytes_per_s": CitedFigure("pool_bandwidth", "bytes_per_s", 1e8, 1e16, is_optional=True),
    "memory_bytes": CitedFigure("memory", "bytes", 2**28, 2**60),
    "bandwidth_bytes_per_s": CitedFigure("bandwidth", "bytes_per_s", 1e8, 1e14),
    "latency_s": CitedFigure("latency", "s", 0, 1),
}


def describe(kind: str, name_or_path: str | Path) -> Description:
    """Return the content of a catalog or user file; the loaders accept it in place of a name.

    Args:
        kind: `device`, `node`, `fabric` or `site`.
        name_or_path: Which; of a node also some number of a device on PCIe, such as `2x-rtx-4090`.

    Raises:
        UnknownNameError: The catalog has none of that name.
        JobError: The file cannot be read.
    """
    try:
        path = _path(kind, name_or_path)
    except UnknownNameError:
        if kind != "node":
            raise
        return _several(str(name_or_path))
    found = Description(path=path, mapping=read_yaml(path))
    return completed(found, _other) if kind == "node" else found


def _other(folder: Path, name: str) -> Description:
    """Return the file of the node that one in a folder is like."""
    if not is_path(name):
        return describe("node", name)
    path = folder / name
    found = Description(path=path, mapping=read_yaml(path))
    if "like" in found.mapping:
        problem = f"like: found {name}, which is like another, expected a complete file"
        raise JobError(str(folder), [problem])
    load_node(found)  # refuses what could not be merged
    return found


def _several(name: str) -> Description:
    """Return the node that holds so many of a device, as its name says.

    Raises:
        UnknownNameError: There is none; of a known device, the nodes that hold it are named.
    """
    folder, (count, typed) = CATALOG / FOLDERS["node"], several(plain(name)) or (0, plain(name))
    # `2x-v100-pcie` has the cards of `8x-v100-pcie`, whatever else goes by that name.
    known = node_names()
    alike = next((node for size in (8, 4) if (node := f"{size}x-{typed}") in known), None)
    try:
        device = (
            read_yaml(folder / f"{alike}.yaml")["device"]
            if alike
            else canonical_name("device", typed)
        )
    except UnknownNameError:
        raise unknown("node", name, chips_of_slice(plain(name))) from None
    if count and (found := node_of(folder, count, device)) is not None:
        return Description(path=found[0], mapping=found[1])
    held = {*names_with(folder, device), *(node for node in known if typed in node)}
    raise UnknownNameError(kind="node", name=name, known=held, hint=part_of_a_node(count))


def load_device(name_or_path: str | Path | Description) -> Device:
    """Return a device of the catalog, or of a user's file.

    Raises:
        UnknownNameError: The catalog has no device of that name.
        JobError: The file cannot be used; every problem is listed.
    """
    path, fields = _open("device", name_or_path)
    found = _read_device(fields)
    fields.close()
    try:
        return Device(**found, sources=fields.sources)
    except HardwareError as error:
        raise JobError(str(path), error.lines) from error


def load_node(name_or_path: str | Path | Description, *, device: Device | None = None) -> Node:
    """Return a node of the catalog, or of a user's file, with the device it names.

    Args:
        device: What it holds, in place of the device it names.

    Raises:
        UnknownNameError: The catalog has no node, or no device, of that name.
        JobError: A file cannot be used; every problem is listed.
    """
    path, fields = _open("node", name_or_path)
    found = _read_node(fields)
    device_name = found.pop("device")
    found["links"] = read_wiring(
        fields,
        device=lambda: device or load_device(_next_to(path.parent, device_name)),
        scale_up=found["scale_up"],
        devices=found["devices"],
        nics=found["nics"],
        folder=path.parent,
    )
    fields.close()
    try:
        held = device or load_device(_next_to(path.parent, device_name))
        return Node(**found, device=held, sources=fields.sources)
    except HardwareError as error:
        raise JobError(str(path), error.lines) from error


def default_fabric_name(node_name_or_path: str | Path) -> str:
    """Return the name, or path, of the default fabric in a node's file.

    Raises:
        UnknownNameError: The catalog has no node of that name.
        JobError: The file cannot be read or names no fabric.
    """
    path, fields = _open("node", node_name_or_path)
    found = fields.text("fabric")
    if not found:
        raise JobError(str(path), ["fabric: is missing, expected the name of a fabric"])
    return str(_next_to(path.parent, found))


def load_fabric(name_or_path: str | Path | Description) -> Fabric:
    """Return a fabric of the catalog, or of a user's file.

    Raises:
        UnknownNameError: The catalog has no fabric of that name.
        JobError: The file cannot be used; every problem is listed.
    """
    _, fields = _open("fabric", name_or_path)
    found = _read_fabric(fields)
    fields.close()
    return Fabric(**found, sources=fields.sources)


def load_site(name_or_path: str | Path | Description, *, nodes: Sequence[Node] = ()) -> Site:
    """Return a site of the catalog, or of a user's file.

    Args:
        nodes: What stands there. Sites of the catalog have the PUE of data centers; nodes that
            stand in none have their own instead.

    Raises:
        UnknownNameError: The catalog has no site of that name.
        JobError: The file cannot be used; every problem is listed.
    """
    path, fields = _open("site", name_or_path)
    found = _read_site(fields)
    fields.close()
    site = Site(**found, sources=fields.sources)
    own = {node.pue: node.sources.get("pue", "") for node in nodes if node.pue is not None}
    if CATALOG not in path.parents or not nodes or any(node.pue is None for node in nodes):
        return site
    pue = max(own)
    return replace(site, pue=pue, sources={**site.sources, "pue": own[pue]})


def _read_device(fields: Fields) -> dict[str, Any]:
    return {
        **_titled(fields),
        **{key: fields.flag(key, name=key) for key in ("inline_ecc",) if key in fields},
        "vendor": fields.text("vendor").lower(),
        "architecture": fields.text("architecture").lower(),
        "die": fields.label("die"),
        "kind": fields.text("kind", _DEVICE_KINDS),
        **fields.figures(_DEVICE_MEMORY),
        "peak_flop_per_s": _read_peaks(fields),
        **fields.figures(_DEVICE),
    }


def _read_node(fields: Fields) -> dict[str, Any]:
    """Return a node but for its links, with the name of its device."""
    found: dict[str, Any] = _titled(fields)
    found["device"], _ = fields.text("device"), fields.text("fabric")
    found["devices"] = fields.count("devices", name="devices", low=1, high=4096)
    found["scale_up"] = _read_scale_up(fields.section("scale_up"))
    found |= fields.figures(_ADAPTERS)
    found["host"] = read_host(fields.section("host"))
    found |= fields.figures(_BILL)
    found["cxl"] = _read_cxl(fields.section("cxl")) if "cxl" in fields else None
    return found


def _read_fabric(fields: Fields) -> dict[str, Any]:
    return {
        **_titled(fields),
        "kind": fields.text("kind", _FABRIC_KINDS),
        **fields.figures(_FABRIC),
        **{key: fields.flag(key, name=key) for key in ("adding_switches",) if key in fields},
    }


def _read_site(fields: Fields) -> dict[str, Any]:
    name = fields.text("name")
    fields.texts("aliases")
    return {"name": name, **fields.figures(_SITE)}


#: Kind of file → what reads its keys; the links of a node apart.
READERS: Mapping[str, Callable[[Fields], dict[str, Any]]] = {
    "device": _read_device,
    "node": _read_node,
    "fabric": _read_fabric,
    "site": _read_site,
}


def _titled(fields: Fields) -> dict[str, str]:
    """Return what every thing but a site is called; its aliases are in the index."""
    found = {"name": fields.text("name"), "title": fields.text("title")}
    fields.texts("aliases")
    return found


def _read_peaks(fields: Fields) -> dict[Precision, float]:
    """Return the dense matrix rate of every precision that the file lists. [FLOP/s]"""
    section = fields.section("matrix_peak")
    peaks = section.quantities(
        list(Precision), "flop_per_s", name="peak_flop_per_s", low=1e9, high=1e18
    )
    section.end()
    return {Precision(key): peak for key, peak in peaks.items()}


def _read_scale_up(section: Fields) -> ScaleUp:
    found: dict[str, Any] = {
        "kind": section.text("kind", _SCALE_UP_KINDS),
        **section.figures(_SCALE_UP, "scale_up."),
    }
    for key in ("in_network_reduction", "adapters_on_devices"):
        if key == "in_network_reduction" or key in section:
            found[key] = section.flag(key, name=f"scale_up.{key}")
    if "shape" in section or found["kind"] == "torus":
        found["shape"] = section.counts("shape", name="scale_up.shape", high=100_000)
        found["wrap_unit"] = section.count(
            "wrap_unit", name="scale_up.wrap_unit", low=1, high=100_000
        )
    found |= section.figures(_SWITCHED, "scale_up.")
    if "sockets" in found:
        found |= section.figures(_SOCKETS, "scale_up.")
    section.end()
    return ScaleUp(**found)


def _read_cxl(section: Fields) -> MemoryTier:
    access = section.text("access", ACCESS) if "access" in section else "copy"
    per_device = "attached" in section and section.text("attached", _ATTACHED) == "device"
    found = section.figures(_TIER, "cxl.")
    pooled = section.flag("pooled", name="cxl.pooled")
    section.end()
    if "pool_bandwidth" in section and not pooled:
        section.refuse("pool_bandwidth", "found without a pool; set pooled, or leave it out")
        found.pop("pool_bytes_per_s")
    return MemoryTier(
        **found,
        pooled=pooled,
        access=access if access in ACCESS else "copy",
        per_device=per_device,
    )


def _open(kind: str, name_or_path: str | Path | Description) -> tuple[Path, Fields]:
    found = name_or_path
    if not isinstance(found, Description):
        found = describe(kind, found)
    return found.path, Fields(str(found.path), found.mapping)


def _path(kind: str, name_or_path: str | Path) -> Path:
    if isinstance(name_or_path, Path) or is_path(name_or_path):
        return Path(name_or_path)
    return CATALOG / FOLDERS[kind] / f"{canonical_name(kind, name_or_path)}.yaml"


def _next_to(folder: Path, name: str) -> str | Path:
    """Return a name unchanged, and a path from the folder of the file that names it."""
    return folder / name if is_path(name) else name
