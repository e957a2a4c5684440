"""Names of the catalog, and what else people, drivers and row files call its things.

One name costs one small file: the file is called as its device is, other names are in an index.
Only spellings that neither has are compared with all names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from wattree.errors import UnknownNameError
from wattree.files import read_yaml
from wattree.units import parse_quantity

#: The folder of the catalog, with one folder per kind of thing.
CATALOG: Final = Path(__file__).parent / "catalog"
#: What to do about hardware that is not in the catalog.
_OTHERS: Final = "; of any other give files of your own, as docs/clusters.md shows"
FOLDERS: Final = {"device": "devices", "node": "nodes", "fabric": "fabrics", "site": "sites"}

_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]{0,79}")  # what a catalog file may be called
#: What data sheets, drivers and clouds put around the names of devices and nodes.
_AROUND = re.compile(
    r"^(?:ml\.|(?:amd|aws|azure|data-center-gpu|geforce|google|huawei|instinct|intel|nvidia|radeon"
    r"|standard|tesla)-)+|-generation$|-graphics$|-oam$"
)
_TRADEMARK = re.compile(r"\((?:r|tm)\)")
#: The memory of a device after its name: `-24gb`, `-80g`.
_MEMORY = re.compile(r"-(\d+)gb?$")
#: A printed size is near a device's memory: in GB or GiB, with what its driver keeps.
_NEAR: Final = 0.1
_GB: Final = 1e9
#: Names that hold what was typed are listed up to so many.
_MOST_LISTED: Final = 24


@cache
def names_of(kind: str) -> tuple[str, ...]:
    """Return the names of a kind of thing in the catalog, sorted."""
    return tuple(sorted(path.stem for path in (CATALOG / FOLDERS[kind]).glob("*.yaml")))


def device_names() -> tuple[str, ...]:
    """Return the names of the devices in the catalog, sorted."""
    return names_of("device")


def node_names() -> tuple[str, ...]:
    """Return the names of the nodes in the catalog, sorted."""
    return names_of("node")


def fabric_names() -> tuple[str, ...]:
    """Return the names of the fabrics in the catalog, sorted."""
    return names_of("fabric")


def site_names() -> tuple[str, ...]:
    """Return the names of the sites in the catalog, sorted."""
    return names_of("site")


def canonical_name(kind: str, name: str) -> str:
    """Return the catalog name for an alias.

    Args:
        kind: `device`, `node`, `fabric` or `site`.
        name: Catalog name or alias. Case, spaces, dashes and underscores do not matter; around a
            device or node, neither do its vendor and its memory, if that is what it has.

    Raises:
        UnknownNameError: The catalog has no such thing. Nothing else is put in its place.
    """
    aliases = _aliases()[kind]
    for each in _spellings(kind, name):
        if _NAME.fullmatch(each) and (CATALOG / FOLDERS[kind] / f"{each}.yaml").is_file():
            return each
        if each in aliases:
            return aliases[each]
    if kind in {"device", "node"} and (found := _squeezed_name(kind, name)):
        return found
    raise unknown(kind, name)


def unknown(kind: str, name: str, hint: str = "") -> UnknownNameError:
    """Return the error of a name, with the names like it, or with `hint` or what to do instead."""
    known = names_like(kind, name)
    instead = hint or (_OTHERS if known == names_of(kind) else "")
    return UnknownNameError(kind=kind, name=name, known=known, hint=instead)


def names_like(kind: str, name: str) -> tuple[str, ...]:
    """Return the catalog's names that hold a name; all names if none or too many do."""
    known, typed = names_of(kind), list(_spellings(kind, name))[-1].replace("-", "")
    holding = tuple(each for each in known if len(typed) > 1 and typed in each.replace("-", ""))
    return holding if 0 < len(holding) <= _MOST_LISTED else known


def plain(name: str) -> str:
    """Return a name as the catalog writes it: lower case, digits and letters joined by dashes."""
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


@cache
def words_of_devices(key: str) -> frozenset[str]:
    """Return what the devices of the catalog have at a bare key, such as `architecture`."""
    line = re.compile(rf"^{key}: (\S+)", re.MULTILINE)
    paths = (CATALOG / FOLDERS["device"]).glob("*.yaml")
    return frozenset(
        word for path in paths for word in line.findall(path.read_text(encoding="utf-8"))
    )


def is_path(text: str) -> bool:
    """Return whether what stands in place of a name is a file."""
    return "/" in text or "\\" in text or text.endswith((".yaml", ".yml"))


def _spellings(kind: str, name: str) -> Iterator[str]:
    yield plain(name)
    if kind in {"device", "node"}:
        yield _AROUND.sub("", plain(_TRADEMARK.sub("", name.lower())))


@cache
def _aliases() -> Mapping[str, Mapping[str, str]]:
    found: dict[str, dict[str, str]] = json.loads((CATALOG / "aliases.json").read_bytes())
    return found


@cache
def _squeezed(kind: str) -> Mapping[str, str]:
    """Return letters and digits of every name and alias → the catalog's name."""
    names = {**_aliases()[kind], **{name: name for name in names_of(kind)}}
    return {each.replace("-", ""): name for each, name in names.items()}


def _squeezed_name(kind: str, name: str) -> str:
    """Return the catalog name of the same letters and digits; empty if there is none."""
    names = _squeezed(kind)
    for each in _spellings(kind, name):
        sized = _MEMORY.search(each)
        full = _MEMORY.sub(r"-\1gb", each)
        if found := names.get(full.replace("-", "")):
            return found
        if kind == "device" and sized:
            found = names.get(_MEMORY.sub("", each).replace("-", ""), "")
            if found and _has_memory(found, float(sized[1])):
                return found
    return ""


def _has_memory(device: str, printed_gb: float) -> bool:
    mapping = read_yaml(CATALOG / FOLDERS["device"] / f"{device}.yaml")
    memory_bytes = parse_quantity(mapping["memory"]["value"], "bytes")
    return abs(memory_bytes / (printed_gb * _GB) - 1.0) < _NEAR
