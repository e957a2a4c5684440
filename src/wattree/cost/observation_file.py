"""The section `observations` of a file of constants: measured times of a user's runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wattree.cost.observations import Observation
from wattree.trace.plain import as_plain, from_plain

#: One solve takes the cube of their number; a user has a few runs, of some classes each.
_MOST = 200
#: Beyond any step, and below what squares of logarithms overflow at. [s]
_MOST_S, _MOST_SPREAD = 1e12, 5.0


def observation_lines(observations: Sequence[Observation]) -> list[str]:
    """Return the lines of the section, with its key; none without observations."""
    found = [f"  - {json.dumps(as_plain(each), allow_nan=False)}" for each in observations]
    return ["observations:", *found] if found else []


def observations_of(raw: Mapping[str, Any], problems: list[str]) -> tuple[Observation, ...]:
    """Return the section of a file; faults are added to `problems`."""
    section = raw.get("observations") or []
    if not isinstance(section, list) or len(section) > _MOST:
        problems.append(f"observations: expected a list of at most {_MOST}")
        return ()
    found: list[Observation] = []
    for number, entry in enumerate(section):
        faults: list[str] = []
        each = from_plain(Observation, entry, faults)
        faults += [] if each is None else list(_faults(each))
        problems += [f"observations[{number}].{fault}" for fault in faults]
        if each is not None and not faults:
            found.append(each)
    return tuple(found)


def _faults(each: Observation) -> Iterator[str]:
    """Yield the faults of an observation."""
    for name, value in (("measured_s", each.measured_s), ("predicted_s", each.predicted_s)):
        if not 0 < value < _MOST_S:
            yield f"{name}: found {value!r}, expected a time above 0"
    if not abs(each.unexplained) < _MOST_SPREAD:
        yield f"unexplained: found {each.unexplained!r}, expected a logarithm"
    if not 0 < each.noise < _MOST_SPREAD:
        yield f"noise: found {each.noise!r}, expected a spread above 0"
    for name, part in each.parts.items():
        if not 0 <= part.spread < _MOST_SPREAD or not math.isfinite(part.share):
            yield f"parts.{name}: found {part!r}, expected a share and a spread of 0 or more"
