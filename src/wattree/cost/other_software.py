"""Software without a family of its own, and the family that it counts as."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from wattree.cost.families import AUTO_SOFTWARE, SOFTWARE
from wattree.errors import UnknownNameError, did_you_mean
from wattree.files import read_yaml

_FILE: Final = Path(__file__).with_suffix(".yaml")
_HINT: Final = "; 'generic' stands for any other"
#: Families by their own names, and the choice that is no family.
_OWN: Final = {name: name for name in (AUTO_SOFTWARE, *SOFTWARE)}
#: Key of the traits that a name has at every precision.
_ALL: Final = "all"
#: Names have no more words.
_MOST_WORDS: Final = 4
#: How alike a name has to be to be suggested: names of software are short. [share of letters]
_ALIKE: Final = 0.8


@cache
def other_software() -> Mapping[str, Mapping[str, str]]:
    """Return family → name of software that counts as it → what says so."""
    return {
        family: {
            name: entry if isinstance(entry, str) else entry["source"]
            for name, entry in named.items()
        }
        for family, named in _entries().items()
    }


@cache
def _entries() -> Mapping[str, Mapping[str, Any]]:
    return read_yaml(_FILE)


@cache
def _own_traits() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return every name without spaces and dashes → precision → traits that its family has not."""
    return {
        _run_together(name): {key: each for key, each in entry.items() if key != "source"}
        for named in _entries().values()
        for name, entry in named.items()
        if not isinstance(entry, str)
    }


def traits_named(name: str, precision: str) -> Mapping[str, Any]:
    """Return the traits in which the software that a user names differs from its family.

    Args:
        name: As for `family_named`; of a longer text, none are known.
        precision: Of the job.
    """
    own = _own_traits().get(_run_together(name), {})
    return {**own.get(_ALL, {}), **own.get(precision, {})}


@cache
def _families() -> Mapping[str, str]:
    """Return every name without spaces and dashes → its family."""
    others = {name: family for family, names in other_software().items() for name in names}
    return {_run_together(name): family for name, family in {**others, **_OWN}.items()}


def family_named(name: str, *, where: str = "", known: Collection[str] = SOFTWARE) -> str:
    """Return the software family that a user's name means.

    Args:
        name: In any capitals, words apart by spaces, dashes, underscores or `+`.
        where: Where it stands, for the message.
        known: Families to choose from.

    Raises:
        UnknownNameError: It means none of them.
    """
    written = _run_together(name)
    family = _families().get(written) or (family_within(name, known) if " " in name else None)
    if family is None or family not in known:
        hint = _HINT if "generic" in known else ""
        names = {each for named in other_software().values() for each in named}
        hint += did_you_mean(name.lower(), names, before="; ", after="", alike=_ALIKE)
        raise UnknownNameError(
            kind="software", name=name, known=known, where=where, hint=hint, alike=_ALIKE
        )
    return family


def family_within(text: str, known: Collection[str] = SOFTWARE) -> str | None:
    """Return the software family of the names in a text such as `NeMo 24.07 (Megatron-Core)`.

    Of several, the one that stands first in the file; None if there is none.

    Args:
        text: Whole words are read, in any capitals.
        known: Families to choose from.
    """
    words = re.findall(r"[a-z0-9](?:[a-z0-9.]*[a-z0-9])?", text.lower())
    found: set[str] = set()
    start = 0
    while start < len(words):  # the longest name that begins here, and not what stands in it
        for end in range(min(start + _MOST_WORDS, len(words)), start, -1):
            if family := _families().get("".join(words[start:end])):
                found.add(family)
                break
        else:
            end = start + 1
        start = end
    return next((family for family in other_software() if family in found & {*known}), None)


def counts_as(name: str, family: str) -> str:
    """Return that a name counts as a software family; empty if it is the family's own."""
    if family == AUTO_SOFTWARE or _run_together(name) == _run_together(family):
        return ""
    return f"{name} counts as the software '{family}'"


def _run_together(name: str) -> str:
    return re.sub(r"[\s_+-]+", "", name.lower())
