"""Figures of a result that was read as JSON: what stands where, and whether it is a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from wattree.job import WorkloadKind
from wattree.strategy import schedule_in_words
from wattree.units import counted

#: Beyond any figure; sums and ratios of such are still numbers.
_MOST: Final = 1e100


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
