"""The links of a node as its file lists them, or as a topology file that it names has them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from wattree.errors import HardwareError, UnitError, nearest
from wattree.hardware.device import Device
from wattree.hardware.fields import Fields, unknown_key
from wattree.hardware.network import Link, Network, cable
from wattree.hardware.node import ScaleUp
from wattree.hardware.topologies import device_name
from wattree.hardware.topologies.join import check_connected
from wattree.units import parse_quantity

#: Keys of one link.
LINK_KEYS = frozenset({"ends", "bandwidth", "latency", "kind"})
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
_DEVICE = re.compile(r"d(\d+)")
_ADAPTER = re.compile(r"nic(\d+)", re.ASCII)
#: Devices of a hybrid cube mesh.
_CUBE = 8
_MOST_LINKS = 100_000
#: Architecture → compute capability, for the rate of one NVLink.
_CAPABILITY = {"pascal": 60, "volta": 70, "turing": 70, "ampere": 80, "hopper": 90}
_CAPABILITY |= {"blackwell": 100, "blackwell-ultra": 100}


def read_wiring(
    fields: Fields,
    *,
    device: Callable[[], Device],
    scale_up: ScaleUp,
    devices: int,
    nics: int,
    folder: Path,
) -> tuple[Link, ...]:
    """Return the links under `links`, or of the file under `topology`; none where neither stands.

    Args:
        fields: Of the node's file.
        device: Loads the device, where it is needed, and with `scale_up` gives the rates that
            a table of `nvidia-smi topo -m` does not have: one NVLink by the architecture, a slot by
            the host link.
        scale_up: For the rate between sockets.
        devices: That the node holds; all of them must be joined.
        nics: Adapters that the node holds; `links` may name no others. A topology file may: it also
            lists those that training does not use.
        folder: Of the node's file, where a relative path starts.

    Raises:
        JobError: The topology file cannot be used.
    """
    if scale_up.kind == "cube-mesh" and devices != _CUBE:
        what = f"found 'cube-mesh' with {devices} devices, expected {_CUBE}"
        fields.refuse("scale_up.kind", f"{what}; use 'mesh', or list the links")
    given = fields.keys()
    if "links" in given and "topology" in given:
        fields.refuse("topology", "found together with 'links', expected one of the two")
    links: list[Link] = []
    if "links" in given:
        links += _listed(fields, devices=devices, nics=nics)
    elif "topology" in given:
        name = fields.text("topology")
        if name:
            links += _topology(folder / name, device(), scale_up)
            fields.cite("links", f"topology file {name}")
    if links:
        try:
            check_wiring(links, devices=devices)
        except HardwareError as error:
            fields.refuse("topology" if "topology" in given else "links", str(error))
    return tuple(links)


def _listed(fields: Fields, *, devices: int, nics: int) -> list[Link]:
    """Return the links under `links`; none if one of them cannot be read."""
    links: list[Link] = []
    first: dict[tuple[str, str], str] = {}
    entries = fields.entries("links", name="links")[:_MOST_LINKS]
    for index, entry in enumerate(entries):
        key = f"links.value[{index}]"
        new = _cable(fields, key, entry, nics=nics)
        for link in new[:1]:  # its way back has the same ends
            pair = min(link.source, link.target), max(link.source, link.target)
            if first.setdefault(pair, key) != key:
                what = f"{' and '.join(pair)} are joined by {first[pair]} too"
                fields.refuse(key, f"{what}; write one link with the bandwidth of both")
        links += new
    for name, meant in _slips(first, devices=devices):
        what = f"'{name}' is the end of one link alone, so that no device reaches another through"
        fields.refuse("links", f"{what} it; did you mean '{meant}'?")
    # One that cannot be read would look like one that is not there.
    return links if len(links) == 2 * len(entries) else []


def _slips(pairs: Iterable[tuple[str, str]], *, devices: int) -> list[tuple[str, str]]:
    """Return ends of one link alone that resemble a device, with that device."""
    ends = Counter(end for pair in pairs for end in pair)
    known = [device_name(device) for device in range(devices)]
    alone = [end for end, links in ends.items() if links == 1 and not _DEVICE.fullmatch(end)]
    return [(end, meant) for end in alone if (meant := nearest(end, known))]


def check_wiring(links: list[Link], *, devices: int) -> None:
    """Raise an error for links that omit a device or name one that does not exist.

    Raises:
        HardwareError: Names the device.
    """
    network = Network(links=tuple(links))
    wanted = [device_name(device) for device in range(devices)]
    for name in network.vertices:
        if _DEVICE.fullmatch(name) and name not in wanted:
            raise HardwareError(f"'{name}' is no device of this node, which has d0 to {wanted[-1]}")
    if devices > 1:
        check_connected(network, wanted, where="links of the node")


def _topology(path: Path, device: Device, scale_up: ScaleUp) -> tuple[Link, ...]:
    # Imported here: most clusters name no such file.
    from wattree.hardware.imports.rates import NVLINK_BYTES_PER_S
    from wattree.hardware.imports.read import read_topology

    between = scale_up.socket_bandwidth_bytes_per_s or device.host_link_bytes_per_s
    capability = _CAPABILITY.get(device.architecture)
    # Of a device without NVLink the cells name none, so that its rate is not asked for.
    each = NVLINK_BYTES_PER_S[capability] if capability else scale_up.bandwidth_bytes_per_s
    return read_topology(
        path,
        nvlink_bytes_per_s=each,
        pcie_bytes_per_s=device.host_link_bytes_per_s,
        socket_bytes_per_s=between,
    ).links


def _cable(fields: Fields, key: str, entry: Mapping[Any, Any], *, nics: int) -> tuple[Link, ...]:
    for extra in sorted(map(str, set(entry) - LINK_KEYS)):
        fields.refuse(f"{key}.{extra}", unknown_key(extra, LINK_KEYS))
    ends = entry.get("ends")
    if (
        not isinstance(ends, list)
        or len(ends) != 2
        or not all(isinstance(end, str) and _NAME.fullmatch(end) for end in ends)
    ):
        found = "is missing" if ends is None else f"found {ends!r:.80}"
        fields.refuse(f"{key}.ends", f"{found}, expected two names, such as [d0, d1]")
        return ()
    for end in ends:
        if (adapter := _ADAPTER.fullmatch(end)) and int(adapter[1]) >= nics:
            has = f"has nic0 to nic{nics - 1}" if nics else "has none"
            fields.refuse(f"{key}.ends", f"'{end}' is no adapter of this node, which {has}")
    kind = entry.get("kind", "mesh")
    if not isinstance(kind, str) or not _NAME.fullmatch(kind):
        fields.refuse(f"{key}.kind", f"found {kind!r:.80}, expected a name, such as nvlink")
        return ()
    rate = _quantity(fields, f"{key}.bandwidth", entry.get("bandwidth"), "bytes_per_s")
    latency = _quantity(fields, f"{key}.latency", entry.get("latency", "0 s"), "s")
    if rate is None or latency is None:
        return ()
    try:
        return cable(ends[0], ends[1], rate, latency_s=latency, kind=kind)
    except HardwareError as error:
        fields.refuse(key, str(error))
        return ()


def _quantity(fields: Fields, key: str, text: object, dimension: str) -> float | None:
    try:
        return parse_quantity(text, dimension, positive=dimension != "s")
    except UnitError as error:
        fields.refuse(key, str(error))
        return None
