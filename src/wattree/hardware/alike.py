"""Nodes that are like another: what their file leaves out is as there, or their part of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

from wattree.errors import JobError, UnknownNameError
from wattree.hardware.description import Description
from wattree.hardware.names import is_path
from wattree.units import parse_quantity

#: What one node says of itself alone.
_OWN: Final = ("name", "title", "aliases", "price")
#: Of switches and sockets: how fewer devices share them is not known.
_SHARED: Final = ("devices_per_switch", "sockets", "socket_bandwidth")
#: Rates and power of a host that is divided among machines, with the unit they are written in.
_DIVIDED: Final = {
    "memory_bandwidth": ("bytes_per_s", "GB/s", 1e9),
    "storage_read": ("bytes_per_s", "GB/s", 1e9),
    "idle": ("w", "W", 1.0),
    "busy": ("w", "W", 1.0),
}


def completed(found: Description, find: Callable[[Path, str], Description]) -> Description:
    """Return a node's file with what it leaves out, as in the node that it is `like`.

    Sections are merged key by key. With another number of devices, the machine has as large a part
    of the power and rates of the other's host as of its devices.

    Args:
        find: Folder, and name of a node or file as from there, → its file, which would load.

    Raises:
        JobError: What it is like is no name, or no known one.
    """
    if "like" not in found.mapping:
        return found
    name = found.mapping["like"]
    if not isinstance(name, str):
        problem = f"like: found {name!r}, expected a node of the catalog, or a file"
        raise JobError(str(found.path), [problem])
    try:
        other = find(found.path.parent, name)
    except UnknownNameError as error:
        raise JobError(str(found.path), [f"like: {error}"]) from error
    base = _with_its_paths(completed(other, find))
    own = {key: value for key, value in found.mapping.items() if key != "like"}
    return Description(path=found.path, mapping=_like(base, own))


def _like(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    count, most = int(_value(own, "devices")), int(_value(base, "devices"))
    if most and count and count != most:
        base = with_devices(base, count, share=count / most, keys=_DIVIDED)
        base["scale_up"]["domain_devices"] = own["devices"]
    return {"price": None, **_merged({k: v for k, v in base.items() if k not in _OWN}, own)}


def with_devices(
    node: Mapping[str, Any], count: int, *, share: float, keys: Collection[str]
) -> dict[str, Any]:
    """Return a node's file with `count` devices and a share of what `keys` of its host name."""
    number = {"value": count, "source": "estimate: as the name of the node says"}
    scale_up = {key: value for key, value in node["scale_up"].items() if key not in _SHARED}
    host = dict(node["host"])
    source = f"estimate: that of {node['devices']['value']} devices, by number"
    for key, (dimension, unit, factor) in _DIVIDED.items():
        if share != 1.0 and key in keys and key in host:
            value = parse_quantity(host[key]["value"], dimension) / factor * share
            host[key] = {"value": f"{value:g} {unit}", "source": source}
    if share != 1.0:
        host.pop("parts", None)  # those of the whole host
    return {
        **{key: value for key, value in node.items() if key not in {*_OWN, "links", "topology"}},
        "devices": number,
        "scale_up": {**scale_up, "domain_devices": number},
        "host": host,
    }


def _with_its_paths(other: Description) -> dict[str, Any]:
    """Return the other's file with paths from anywhere, and sources under names of their own."""
    mapping = dict(other.mapping)
    for key in ("device", "fabric", "topology"):
        text = mapping.get(key)
        if isinstance(text, str) and is_path(text):
            mapping[key] = str((other.path.parent / text).absolute())
    sources = mapping.get("sources")
    if not isinstance(sources, Mapping):
        return mapping
    names = {key: f"{other.path.stem}: {key}" for key in sources}
    renamed = {key: _cited_as(value, names) for key, value in mapping.items()}
    return {**renamed, "sources": {names[key]: text for key, text in sources.items()}}


def _cited_as(value: object, names: Mapping[Any, str]) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {
        key: names.get(item, item)
        if key == "source" and isinstance(item, str)
        else _cited_as(item, names)
        for key, item in value.items()
    }


def _merged(base: Mapping[Any, Any], own: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return both, the own where they differ; a figure with its source is one value."""
    return dict(base) | {
        key: _merged(base[key], value)
        if isinstance(value, Mapping)
        and isinstance(base.get(key), Mapping)
        and not {"value", "source"} & value.keys()
        else value
        for key, value in own.items()
    }


def _value(section: object, key: str) -> float:
    """Return a plain number of a section; 0 for what the loader will refuse."""
    cited = section.get(key) if isinstance(section, Mapping) else None
    found = cited.get("value") if isinstance(cited, Mapping) else None
    if isinstance(found, bool) or not isinstance(found, int | float):
        return 0.0
    return max(float(found), 0.0)
