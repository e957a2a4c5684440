"""Maps an event's name to its operator class (`op_classes.yaml`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from wattree.files import read_yaml

#: Classes of what a rank does, in the words of predictions (`learn.classes`).
PRODUCTS, ATTENTION, ELEMENTWISE, COPIES = "products", "attention", "elementwise", "copies"
OPTIMIZER, COMMUNICATION, WAITING = "optimizer", "communication", "waiting"
HOST, DATA = "host", "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpClasses:
    """Rules that map names to operator classes.

    Attributes:
        kernels, host_ops, marks: Patterns and their classes, in order; none matches: `others`.
        others: Section → class of what no rule knows.
        collectives: Pattern of a backend's marks, with the group `kind`.
        pairwise: Pattern of kinds that only two ranks take part in.
    """

    kernels: tuple[tuple[re.Pattern[str], str], ...]
    host_ops: tuple[tuple[re.Pattern[str], str], ...]
    marks: tuple[tuple[re.Pattern[str], str], ...]
    others: dict[str, str | None]
    collectives: re.Pattern[str]
    pairwise: re.Pattern[str]

    def of(self, section: str, name: str) -> str | None:
        """Return the class of a name; None for marks without a class."""
        for pattern, found in getattr(self, section):
            if pattern.search(name):
                return str(found)
        return self.others[section]


@cache
def op_classes() -> OpClasses:
    """Return the built-in rules."""
    raw = read_yaml(Path(__file__).with_suffix(".yaml"))
    sections = ("kernels", "host_ops", "marks")
    rules = {
        name: tuple((re.compile(each["match"], re.IGNORECASE), each["class"]) for each in rows)
        for name in sections
        for rows in [raw[name]["rules"]]
    }
    return OpClasses(
        **rules,
        others={name: raw[name].get("others") for name in sections},
        collectives=re.compile(raw["collectives"]),
        pairwise=re.compile(raw["pairwise"]),
    )
