"""Recognizes the kind of a file, for messages about a wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Kind of file → keys that all of its files have, and what is done with them.
_KINDS: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    "a job": (frozenset({"model", "data", "cluster"}), "use `wattree plan`, `simulate` or `train`"),
    "a design study": (frozenset({"workloads", "axes"}), "use `wattree design`"),
    "a queue": (frozenset({"cluster", "jobs"}), "use `wattree schedule`"),
    "a calibration": (frozenset({"constants"}), "give it as `--calibration`"),
    "a plan": (frozenset({"candidates", "ranked"}), "`wattree plan --out` writes its job"),
    "a measured run": (frozenset({"wall_s", "energy_j"}), "use `wattree energy`"),
    "a device": (frozenset({"architecture", "matrix_peak"}), "name it as `device:` of a node"),
    "a node": (frozenset({"device", "devices"}), "name it as `cluster: {node: FILE}` of a job"),
    "a model's config.json": (frozenset({"model_type"}), "name it as `model:` of a job"),
}


def wrong_kind(mapping: object, expected: str) -> str | None:
    """Return the message about a file of another kind, with the command for it; else None.

    Args:
        mapping: As read.
        expected: The kind that was asked for, such as `a job`.
    """
    if not isinstance(mapping, Mapping) or mapping.keys() >= _KINDS[expected][0]:
        return None
    for kind, (keys, advice) in _KINDS.items():
        if keys <= mapping.keys():
            return f"this is {kind}, expected {expected}: {advice}"
    return None
