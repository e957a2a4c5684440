"""Software without a family of its own, and the family that it counts as."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from wattree.cost.families import AUTO_SOFTWARE, SOFTWARE
from wattree.errors import UnknownNameError, did_you_mean
from wattree.files import read_yaml

_FILE: Final = Path(__file__).with_suffix(".yaml")
_HINT: Final = "; 'generic' stands for any other"
#: How alike a name has to be to be suggested: names of software are short. [share of letters]
_ALIKE: Final = 0.8


@cache
def other_software() -> Mapping[str, Mapping[str, str]]:
    """Return family → name of software that counts as it → what says so."""
    return read_yaml(_FILE)


@cache
def _families() -> Mapping[str, str]:
    return {name: family for family, names in other_software().items() for name in names}


def family_named(name: str, *, where: str = "", known: Collection[str] = SOFTWARE) -> str:
    """Return the software family that a user's name means.

    Args:
        name: In any capitals, words apart by spaces, dashes, underscores or `+`.
        where: Where it stands, for the message.
        known: Families to choose from.

    Raises:
        UnknownNameError: It means none of them.
    """
    written = _written(name)
    family = _families().get(written, written)
    if family not in known:
        hint = _HINT if "generic" in known else ""
        hint += did_you_mean(written, _families(), before="; ", after="", alike=_ALIKE)
        raise UnknownNameError(kind="software", name=name, known=known, where=where, hint=hint)
    return family


def counts_as(name: str, family: str) -> str:
    """Return that a name counts as a software family; empty if it is the family's own."""
    if family == AUTO_SOFTWARE or _written(name) == family:
        return ""
    return f"{name} counts as the software '{family}'"


def _written(name: str) -> str:
    return "-".join(re.split(r"[\s_+-]+", name.strip().lower()))
