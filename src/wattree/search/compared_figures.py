"""Figures of a result that was read as JSON: what stands where, and whether it is a number."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from wattree.job import WorkloadKind
from wattree.strategy import schedule_in_words
from wattree.units import counted, format_bytes, format_quantity

#: Beyond any figure; sums and ratios of such are still numbers.
_MOST: Final = 1e100
#: Differences of memory and energy below this share are nothing to people, as are those of batches,
#: which files of results have by rates that were rounded.
_NOTHING: Final = 0.01
#: Who lists a rent, in the words of what is assumed.
_PROVIDER: Final = re.compile(r"per hour, ([^,;]+?)(?: on-demand| secure-cloud)? list price")
#: Rates, with what is counted of them.
_UNITS: Final = (("tokens_per_s", "billion tokens", 1e9), ("samples_per_s", "million samples", 1e6))


def figure_at(figures: Mapping[str, Any], place: Sequence[str]) -> Any:
    """Return what stands below keys, one in the other; None if nothing does.

    What is no mapping but has keys below it in a result is returned itself: it is odd as well.
    """
    found: Any = figures
    for key in place:
        if not isinstance(found, Mapping):
            return found
        found = found.get(key)
    return found


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number that a figure may be."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST


def is_number_or_none(figures: Mapping[str, Any], place: Sequence[str]) -> bool:
    """Return whether a figure is a number; also where there is none."""
    found = figure_at(figures, place)
    return found is None or is_number(found)


def units_per_step(runs: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[float, ...]] | None:
    """Return by what unlike steps are compared, and how much of it each has; None of alike ones.

    Billions of tokens, or millions of samples where a run has none.
    """
    for key, name, unit in _UNITS:
        found = tuple((each.get(key) or 0.0) * each["step_time_s"] / unit for each in runs)
        if all(found):
            return (name, found) if max(found) > (1 + _NOTHING) * min(found) else None
    return None


def more_or_less(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return what one step takes more or less of than another: memory and energy."""
    found = []
    for name, place, shown in (
        ("memory", ("memory", "peak_bytes"), format_bytes),
        ("energy", ("energy_j", "total"), lambda value: format_quantity(value, "J")),
    ):
        what, used, usual = name, figure_at(mine, place), figure_at(theirs, place)
        if not (is_number(used) and is_number(usual)):
            continue  # a run may be too short for its meters
        if name == "energy" and (units := units_per_step((mine, theirs))):
            used, usual = (
                value / count for value, count in zip((used, usual), units[1], strict=True)
            )
            what = f"{name} per {units[0]}"
        if abs(used - usual) > _NOTHING * usual:
            found.append(f"{shown(abs(used - usual))} {'more' if used > usual else 'less'} {what}")
    return found


def price_lists(facts: Mapping[str, str], figures: Mapping[str, Any]) -> frozenset[str]:
    """Return whose list prices the rent of a run's nodes are, as far as it says."""
    assumed = figures.get("assumed")
    lines = [facts.get("price"), *(assumed if isinstance(assumed, list | tuple) else ())]
    return frozenset(_PROVIDER.findall("; ".join(line for line in lines if isinstance(line, str))))


def are_spans(found: object) -> bool:
    """Return whether intervals are pairs of numbers by name; also where there are none."""
    spans = found.values() if isinstance(found, dict) else [] if found is None else [found]
    return all(
        span is None
        or (isinstance(span, list) and len(span) == 2 and all(is_number(end) for end in span))
        for span in spans
    )


def facts_of(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a result: model, cluster, degrees, schedule."""
    facts = {name: str(figures[name]) for name in ("model", "cluster", "ranks") if name in figures}
    facts["workload"] = str(figures.get("workload", WorkloadKind.TRAIN))
    strategy = figures.get("strategy")
    if isinstance(strategy, Mapping):
        meshes = strategy.get("meshes") or {"": strategy}
        named = meshes.items() if isinstance(meshes, Mapping) else ()
        known = {name: mesh for name, own in named if (mesh := _mesh_of(own))}
        if known:
            facts["mesh"] = "; ".join(
                f"{name} " * bool(name) + ", ".join(f"{axis} {n}" for axis, n in mesh.items())
                for name, mesh in known.items()
            )
        if isinstance(schedule := strategy.get("schedule"), Mapping):
            facts["schedule"] = _schedule_in_words(schedule)
    return facts


def differ(found: Sequence[str | None]) -> bool:
    """Return whether runs have different facts; a file may be named from another folder."""
    known = set(found)
    if len(known) < 2 or None in known:
        return len(known) > 1
    names = sorted({str(each) for each in known}, key=len)
    return not all(each.endswith(f"/{names[0]}") for each in names[1:])


def _mesh_of(own: object) -> Mapping[str, Any]:
    mesh = own.get("mesh") if isinstance(own, Mapping) else None
    return mesh if isinstance(mesh, Mapping) else {}


def _schedule_in_words(schedule: Mapping[str, Any]) -> str:
    words = [schedule_in_words(str(schedule.get("name", "")))]
    for key, each in (("micro_batches", "micro-batch"), ("virtual_stages", "virtual stage")):
        if (number := schedule.get(key)) and (number != 1 or key == "micro_batches"):
            words.append(counted(number, each) if type(number) is int else f"{each}s {number}")
    return ", ".join(words)


def adds_up(figures: Mapping[str, Any], place: Sequence[str]) -> bool:
    """Return whether a breakdown holds numbers alone; also where there is none, or of a part."""
    found = figure_at(figures, place)
    if found is None:
        return True
    return isinstance(found, dict) and all(is_number_or_none(found, (each,)) for each in found)
