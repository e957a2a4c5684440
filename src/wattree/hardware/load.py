"""Hardware from YAML: the catalogue that ships, and files of the same schema that users write.

A name is looked up in the catalogue; what holds a slash or ends in `.yaml` is a file. One name
costs one small file: the file is called as its device is, and other names are in an index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from wattree.errors import HardwareError, JobError, UnknownNameError
from wattree.files import read_yaml
from wattree.hardware.cluster import Fabric, Site
from wattree.hardware.description import Description
from wattree.hardware.device import Device, Precision
from wattree.hardware.fields import Fields
from wattree.hardware.host import read_host
from wattree.hardware.node import ACCESS, MemoryTier, Node, ScaleUp
from wattree.hardware.wiring import read_wiring

__all__ = [
    "CATALOG",
    "alias_index",
    "canonical_name",
    "default_fabric_name",
    "describe",
    "device_names",
    "fabric_names",
    "load_device",
    "load_fabric",
    "load_node",
    "load_site",
    "node_names",
    "site_names",
]

#: The folder of the catalogue, with one folder per kind of thing.
CATALOG = Path(__file__).parent / "catalog"
_FOLDERS = {"device": "devices", "node": "nodes", "fabric": "fabrics", "site": "sites"}

_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]{0,79}")  # what a catalogue file may be called

_DEVICE_KINDS = ("cpu", "gpu", "npu", "tpu")
_SCALE_UP_KINDS = ("cube-mesh", "links", "mesh", "pcie", "ring", "switch", "torus")
_FABRIC_KINDS = ("dragonfly", "ethernet", "fat-tree", "none", "rail-optimised", "torus")
#: What a link to expanded memory starts from.
_ATTACHED = ("device", "host")
# The limits of the quantities below are no facts, only the bounds of what can be meant.


def device_names() -> tuple[str, ...]:
    """Return the names of the devices in the catalogue, sorted."""
    return _names("device")


def node_names() -> tuple[str, ...]:
    """Return the names of the nodes in the catalogue, sorted."""
    return _names("node")


def fabric_names() -> tuple[str, ...]:
    """Return the names of the fabrics in the catalogue, sorted."""
    return _names("fabric")


def site_names() -> tuple[str, ...]:
    """Return the names of the sites in the catalogue, sorted."""
    return _names("site")


def canonical_name(kind: str, name: str) -> str:
    """Return the catalogue name of something known under another name.

    Args:
        kind: `device`, `node`, `fabric` or `site`.
        name: Catalogue name or alias; case, spaces, dashes and underscores do not matter.

    Raises:
        UnknownNameError: The catalogue has no such thing. Nothing else is put in its place.
    """
    plain = _plain(name)
    if _NAME.fullmatch(plain) and (CATALOG / _FOLDERS[kind] / f"{plain}.yaml").is_file():
        return plain
    index: Mapping[str, Mapping[str, str]] = json.loads(
        (CATALOG / "aliases.json").read_text(encoding="utf-8")
    )
    if plain in index[kind]:
        return index[kind][plain]
    raise UnknownNameError(kind=kind, name=name, known=_names(kind))


def describe(kind: str, name_or_path: str | Path) -> Description:
    """Return what a file of the catalogue, or of a user, holds; the loaders take it as they do it.

    Args:
        kind: `device`, `node`, `fabric` or `site`.
        name_or_path: Which.

    Raises:
        UnknownNameError: The catalogue has none of that name.
        JobError: The file cannot be read.
    """
    path = _path(kind, name_or_path)
    return Description(path=path, mapping=read_yaml(path))


def load_device(name_or_path: str | Path | Description) -> Device:
    """Return a device of the catalogue, or of a user's file.

    Raises:
        UnknownNameError: The catalogue has no device of that name.
        JobError: The file cannot be used; every problem is listed.
    """
    path, fields = _open("device", name_or_path)
    name, title = fields.text("name"), fields.text("title")
    fields.texts("aliases")
    vendor, architecture = fields.text("vendor"), fields.text("architecture")
    kind = fields.text("kind", _DEVICE_KINDS)
    memory = fields.quantity("memory", "bytes", name="memory_bytes", low=2**28, high=2**44)
    bandwidth = fields.quantity(
        "memory_bandwidth", "bytes_per_s", name="memory_bandwidth_bytes_per_s", low=1e9, high=1e15
    )
    peaks = _read_peaks(fields)
    vector = fields.quantity(
        "vector_peak", "flop_per_s", name="vector_flop_per_s", low=1e9, high=1e16
    )
    units = fields.count("compute_units", name="compute_units", low=1, high=100_000)
    host_link = fields.quantity(
        "host_link", "bytes_per_s", name="host_link_bytes_per_s", low=1e8, high=1e13
    )
    tdp = fields.quantity("tdp", "w", name="tdp_w", low=1, high=20_000)
    idle = fields.quantity("idle", "w", name="idle_w", low=0, high=20_000)
    fields.close()
    try:
        return Device(
            name=name,
            title=title,
            vendor=vendor,
            kind=kind,
            architecture=architecture,
            memory_bytes=memory,
            memory_bandwidth_bytes_per_s=bandwidth,
            peak_flop_per_s=peaks,
            vector_flop_per_s=vector,
            compute_units=units,
            host_link_bytes_per_s=host_link,
            tdp_w=tdp,
            idle_w=idle,
            sources=fields.sources,
        )
    except HardwareError as error:
        raise JobError(str(path), error.lines) from error


def load_node(name_or_path: str | Path | Description, *, device: Device | None = None) -> Node:
    """Return a node of the catalogue, or of a user's file, with the device it names.

    Args:
        name_or_path: Which.
        device: What it holds, in place of the device it names.

    Raises:
        UnknownNameError: The catalogue has no node, or no device, of that name.
        JobError: A file cannot be used; every problem is listed.
    """
    path, fields = _open("node", name_or_path)
    name, title = fields.text("name"), fields.text("title")
    fields.texts("aliases")
    device_name, _ = fields.text("device"), fields.text("fabric")
    devices = fields.count("devices", name="devices", low=1, high=4096)
    scale_up = _read_scale_up(fields.section("scale_up"))
    nics = fields.count("nics", name="nics", low=0, high=1024)
    nic_bandwidth = fields.quantity(
        "nic_bandwidth", "bytes_per_s", name="nic_bandwidth_bytes_per_s", low=1e6, high=1e13
    )
    nic_latency = fields.quantity("nic_latency", "s", name="nic_latency_s", low=0, high=1)
    host = read_host(fields.section("host"))
    price = fields.quantity_or_none("price", "usd_per_s", name="price_usd_per_s", low=0, high=1000)
    keys = fields.keys()
    cxl = _read_cxl(fields.section("cxl")) if "cxl" in keys else None
    links = read_wiring(
        fields,
        device=lambda: device or load_device(_beside(path, device_name)),
        scale_up=scale_up,
        devices=devices,
        nics=nics,
        folder=path.parent,
    )
    fields.close()
    try:
        return Node(
            name=name,
            title=title,
            device=device or load_device(_beside(path, device_name)),
            devices=devices,
            scale_up=scale_up,
            nics=nics,
            nic_bandwidth_bytes_per_s=nic_bandwidth,
            nic_latency_s=nic_latency,
            host=host,
            price_usd_per_s=price,
            links=links,
            cxl=cxl,
            sources=fields.sources,
        )
    except HardwareError as error:
        raise JobError(str(path), error.lines) from error


def default_fabric_name(node_name_or_path: str | Path) -> str:
    """Return the name, or path, of the fabric that a node's file names for it.

    Raises:
        UnknownNameError: The catalogue has no node of that name.
        JobError: The file cannot be read or names no fabric.
    """
    path, fields = _open("node", node_name_or_path)
    found = fields.text("fabric")
    if not found:
        raise JobError(str(path), ["fabric: is missing, expected the name of a fabric"])
    return str(_beside(path, found))


def load_fabric(name_or_path: str | Path | Description) -> Fabric:
    """Return a fabric of the catalogue, or of a user's file.

    Raises:
        UnknownNameError: The catalogue has no fabric of that name.
        JobError: The file cannot be used; every problem is listed.
    """
    _, fields = _open("fabric", name_or_path)
    name, title = fields.text("name"), fields.text("title")
    fields.texts("aliases")
    kind = fields.text("kind", _FABRIC_KINDS)
    oversubscription = fields.number("oversubscription", name="oversubscription", low=1, high=1000)
    leaf_nodes = fields.count("leaf_nodes", name="leaf_nodes", low=1, high=1_000_000)
    latency = fields.quantity("switch_latency", "s", name="switch_latency_s", low=0, high=1)
    power = fields.quantity(
        "switch_power_per_nic", "w", name="switch_w_per_nic", low=0, high=10_000
    )
    port = None
    if "port_bandwidth" in fields.keys():  # noqa: SIM118 - no mapping
        port = fields.quantity(
            "port_bandwidth", "bytes_per_s", name="port_bytes_per_s", low=1e6, high=1e13
        )
    fields.close()
    return Fabric(
        name=name,
        title=title,
        kind=kind,
        oversubscription=oversubscription,
        leaf_nodes=leaf_nodes,
        switch_latency_s=latency,
        switch_w_per_nic=power,
        port_bytes_per_s=port,
        sources=fields.sources,
    )


def load_site(name_or_path: str | Path | Description) -> Site:
    """Return a site of the catalogue, or of a user's file.

    Raises:
        UnknownNameError: The catalogue has no site of that name.
        JobError: The file cannot be used; every problem is listed.
    """
    _, fields = _open("site", name_or_path)
    name = fields.text("name")
    fields.texts("aliases")
    pue = fields.number("pue", name="pue", low=1, high=10)
    per_kwh = 1 / 3.6e6
    carbon = fields.quantity_or_none(
        "carbon", "gco2e_per_j", name="carbon_gco2e_per_j", low=0, high=5000 * per_kwh
    )
    price = fields.quantity_or_none(
        "energy_price", "usd_per_j", name="energy_price_usd_per_j", low=0, high=100 * per_kwh
    )
    fields.close()
    return Site(
        name=name,
        pue=pue,
        carbon_gco2e_per_j=carbon,
        energy_price_usd_per_j=price,
        sources=fields.sources,
    )


def _read_peaks(fields: Fields) -> dict[Precision, float]:
    """Return the dense matrix rate of every precision that the file lists. [FLOP/s]"""
    section = fields.section("matrix_peak")
    peaks = section.quantities(
        list(Precision), "flop_per_s", name="peak_flop_per_s", low=1e9, high=1e18
    )
    section.end()
    return {Precision(key): peak for key, peak in peaks.items()}


def _read_scale_up(section: Fields) -> ScaleUp:
    kind = section.text("kind", _SCALE_UP_KINDS)
    bandwidth = section.quantity(
        "bandwidth", "bytes_per_s", name="scale_up.bandwidth_bytes_per_s", low=1e8, high=1e14
    )
    latency = section.quantity("latency", "s", name="scale_up.latency_s", low=0, high=1)
    domain = section.count("domain_devices", name="scale_up.domain_devices", low=1, high=100_000)
    reduction = section.flag("in_network_reduction", name="scale_up.in_network_reduction")
    given = section.keys()
    shape = wrap_unit = per_switch = sockets = between = None
    if "shape" in given or kind == "torus":
        shape = section.counts("shape", name="scale_up.shape", high=100_000)
        wrap_unit = section.count("wrap_unit", name="scale_up.wrap_unit", low=1, high=100_000)
    if "devices_per_switch" in given:
        per_switch = section.count(
            "devices_per_switch", name="scale_up.devices_per_switch", low=1, high=64
        )
    if "sockets" in given:
        sockets = section.count("sockets", name="scale_up.sockets", low=1, high=64)
        between = section.quantity(
            "socket_bandwidth",
            "bytes_per_s",
            name="scale_up.socket_bandwidth_bytes_per_s",
            low=1e8,
            high=1e13,
        )
    on_devices = "adapters_on_devices" in given and section.flag(
        "adapters_on_devices", name="scale_up.adapters_on_devices"
    )
    section.end()
    return ScaleUp(
        kind=kind,
        bandwidth_bytes_per_s=bandwidth,
        latency_s=latency,
        domain_devices=domain,
        in_network_reduction=reduction,
        shape=shape,
        wrap_unit=wrap_unit or 1,
        devices_per_switch=per_switch or 1,
        sockets=sockets or 1,
        socket_bandwidth_bytes_per_s=between,
        adapters_on_devices=on_devices,
    )


def _read_cxl(section: Fields) -> MemoryTier:
    given = section.keys()
    access = section.text("access", ACCESS) if "access" in given else "copy"
    per_device = "attached" in given and section.text("attached", _ATTACHED) == "device"
    pool = None
    if "pool_bandwidth" in given:
        pool = section.quantity(
            "pool_bandwidth", "bytes_per_s", name="cxl.pool_bytes_per_s", low=1e8, high=1e16
        )
    figures = {
        "memory_bytes": section.quantity(
            "memory", "bytes", name="cxl.memory_bytes", low=2**28, high=2**60
        ),
        "bandwidth_bytes_per_s": section.quantity(
            "bandwidth", "bytes_per_s", name="cxl.bandwidth_bytes_per_s", low=1e8, high=1e14
        ),
        "latency_s": section.quantity("latency", "s", name="cxl.latency_s", low=0, high=1),
    }
    pooled = section.flag("pooled", name="cxl.pooled")
    section.end()
    if "pool_bandwidth" in given and not pooled:
        section.refuse("pool_bandwidth", "found without a pool; set pooled, or leave it out")
        pool = None
    return MemoryTier(
        **figures,
        pooled=pooled,
        access=access if access in ACCESS else "copy",
        per_device=per_device,
        pool_bytes_per_s=pool,
    )


def _open(kind: str, name_or_path: str | Path | Description) -> tuple[Path, Fields]:
    found = name_or_path
    if not isinstance(found, Description):
        found = describe(kind, found)
    return found.path, Fields(str(found.path), found.mapping)


def _path(kind: str, name_or_path: str | Path) -> Path:
    if isinstance(name_or_path, Path) or _is_path(name_or_path):
        return Path(name_or_path)
    return CATALOG / _FOLDERS[kind] / f"{canonical_name(kind, name_or_path)}.yaml"


def _is_path(text: str) -> bool:
    return "/" in text or "\\" in text or text.endswith((".yaml", ".yml"))


def _beside(path: Path, name: str) -> str | Path:
    """Return a name as it is, and a path as seen from the folder of the file that holds it."""
    return path.parent / name if _is_path(name) else name


def _plain(name: str) -> str:
    """Return a name as the catalogue writes it: lower case, digits and letters joined by dashes."""
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


def _names(kind: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (CATALOG / _FOLDERS[kind]).glob("*.yaml")))


def alias_index() -> dict[str, dict[str, str]]:
    """Return, by kind, every other name of the catalogue → its file's name.

    Reads every file. `aliases.json` holds the result, so that looking up one name does not.

    Raises:
        JobError: Two files claim the same name.
    """
    index: dict[str, dict[str, str]] = {}
    for kind, folder in _FOLDERS.items():
        names = set(_names(kind))
        index[kind] = {}
        for name in sorted(names):
            path = CATALOG / folder / f"{name}.yaml"
            for alias in map(_plain, read_yaml(path).get("aliases", [])):
                if alias in names - {name} or index[kind].get(alias, name) != name:
                    raise JobError(str(path), [f"aliases: '{alias}' names another {kind} too"])
                if alias != name:
                    index[kind][alias] = name
    return index
