"""The software families: what each does, by the table `families.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from wattree.cost.software import Software
from wattree.errors import UnknownNameError
from wattree.files import read_yaml

#: Leaves the choice of the software family to the kind of model.
AUTO_SOFTWARE = "auto"

_TABLE: Final[Mapping[str, Mapping[str, Any]]] = read_yaml(Path(__file__).with_suffix(".yaml"))
#: Keys of an entry that are no traits.
_SECTIONS: Final = ("engines", "before", "first", "versions", "for_language", "latent", "on_tpus")


def _whole(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry with all that those have which it is like, releases by month."""
    found: dict[str, Any] = {}
    for each in (*(_whole(_TABLE[name]) for name in entry.get("like", ())), entry):
        earlier, own = found.get("before", {}), each.get("before", {})
        found |= {key: value for key, value in each.items() if key != "like"}
        found["before"] = {
            month: {**earlier.get(month, {}), **own.get(month, {})}
            for month in sorted({*earlier, *own})
        }
    return found


_FAMILIES: Final = {
    name: _whole(entry) for name, entry in _TABLE.items() if not name.startswith("_")
}


def _traits(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in _whole(entry).items() if key not in _SECTIONS}


def _section(name: str) -> dict[str, Any]:
    """Return family → a section of its entry, for those that have it."""
    return {family: each[name] for family, each in _FAMILIES.items() if each.get(name)}


SOFTWARE: Final[Mapping[str, Software]] = {
    name: Software(name=name, **_traits(entry)) for name, entry in _FAMILIES.items()
}
#: Family with several engines → engine → its traits, where they differ from the family's.
ENGINES: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    family: {engine: _traits(entry) for engine, entry in engines.items()}
    for family, engines in _section("engines").items()
}
#: Family → month → what its releases before it did otherwise.
BEFORE: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = _section("before")
#: Family → month of its first release, where that is known.
FIRST: Final[Mapping[str, str]] = _section("first")
#: Family → version → month that stands for it in `BEFORE`, for those whose users name versions.
VERSIONS: Final[Mapping[str, Mapping[str, str]]] = _section("versions")
#: Family → what differs on TPUs; for latent attention; for language models.
ON_TPUS: Final[Mapping[str, Mapping[str, Any]]] = _section("on_tpus")
LATENT: Final[Mapping[str, Mapping[str, Any]]] = _section("latent")
FOR_LANGUAGE: Final[Mapping[str, Mapping[str, Any]]] = {
    family: _traits(entry) for family, entry in _section("for_language").items()
}


def software_family(name: str, *, language: bool = True, known_family: bool = True) -> Software:
    """Return the family called `name`; raise `UnknownNameError` if there is none.

    Args:
        name: Its name, or `AUTO_SOFTWARE` for the one that users of such a model take.
        language, known_family: The model is one of language, and like those of the catalog.
    """
    if name == AUTO_SOFTWARE:
        name = ("megatron-core" if known_family else "generic") if language else "pytorch"
    if name not in SOFTWARE:
        raise UnknownNameError(kind="software family", name=name, known=SOFTWARE)
    return SOFTWARE[name]
