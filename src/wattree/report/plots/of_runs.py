"""Pictures of several steps side by side: where time, memory and energy go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from wattree.lowering.streams import CATEGORIES
from wattree.report.plots.bars import Bars, draw_bars
from wattree.report.plots.figure import Plot, energy_unit, time_unit
from wattree.report.words import COMPONENT_WORDS, part_in_words, percent, quantity
from wattree.trace import STEP_PART_WORDS, step_part_words
from wattree.units import format_bytes, format_time

_GIB: Final = 2.0**30
#: Parts of memory in the order of their colors: those of tensors as pictures over time have them.
_MEMORY: Final = (*CATEGORIES, "allocator", "context", "overhead")
#: Bars whose parts a summary names, each of them.
_EACH: Final = 2


def step_plot(
    parts: Mapping[str, Mapping[str, float]],
    title: str = "",
    known: Sequence[str] = tuple(STEP_PART_WORDS),
    timed: str = "step",
    strategies: Iterable[object] = (),
) -> Plot:
    """Return the picture of where steps go.

    Args:
        parts: Name of a step → part → time. [s]
        title: Its heading, unless it is that of steps.
        known: All parts, in the order of their colors.
        strategies: Of the steps, as results have them.
    """
    words = step_part_words(*strategies)
    parts = {
        step: {words.get(part, part): time_s for part, time_s in each.items()}
        for step, each in parts.items()
    }
    known = [words.get(part, part) for part in known]
    longest = max((sum(each.values()) for each in parts.values()), default=1.0)
    scale, unit = time_unit(longest)
    bars = Bars(parts=parts, quantity=f"time of a {timed}", unit=unit, scale=scale, known=known)
    return Plot(
        name="step",
        title=title or f"Where the {timed} goes",
        summary=f"{_in_words(parts, format_time)}.",
        draw=partial(draw_bars, bars=bars),
    )


def run_plots(runs: Mapping[str, Mapping[str, Any]]) -> list[Plot]:
    """Return the pictures of several results.

    Args:
        runs: Name → figures of the result, as its `as_json` has them.
    """
    timed = "batch" if all(figures.get("generation") for figures in runs.values()) else "step"
    times = {name: each["time_s"] for name, each in runs.items()}
    strategies = [each.get("strategy") for each in runs.values()]
    found = [step_plot(times, timed=timed, strategies=strategies)]
    memory = {name: figures["memory"] for name, figures in runs.items()}
    held = {name: each["by_category"] for name, each in memory.items() if each.get("by_category")}
    capacities = {each.get("capacity_bytes") for each in memory.values()}
    if held:
        limit = capacities.pop() if len(capacities) == 1 else None
        bars = Bars(
            parts=held, quantity="memory", unit="GiB", scale=_GIB, limit=limit, known=_MEMORY
        )
        of = "" if limit is None else f" The line is what the device has, {format_bytes(limit)}."
        found.append(bars_plot("memory", "Memory of the fullest device", bars, format_bytes, of))
    energy = {name: _components(figures.get("energy_j")) for name, figures in runs.items()}
    drawn = {name: each for name, each in energy.items() if each}
    if drawn:
        scale, unit = energy_unit(max(sum(each.values()) for each in drawn.values()))
        bars = Bars(
            parts=drawn,
            quantity=f"energy of a {timed} with PUE",
            unit=unit,
            scale=scale,
            known=tuple(COMPONENT_WORDS),
        )
        joules = partial(quantity, unit="J")
        found.append(bars_plot("energy", "Where the energy goes", bars, joules))
    return found


def _components(energy: Any) -> Mapping[str, float]:
    """Return energy by component; by stage where a meter knows no components."""
    if not isinstance(energy, Mapping):
        return {}
    parts = energy.get("by_component") or energy.get("by_stage") or {}
    return {name: part for name, part in parts.items() if part is not None}


def bars_plot(name: str, title: str, bars: Bars, shown: Any, more: str = "") -> Plot:
    """Return a picture of bars.

    Args:
        more: What its summary says besides.
    """
    return Plot(
        name=name,
        title=title,
        summary=f"{_in_words(bars.parts, shown)}.{more}",
        draw=partial(draw_bars, bars=bars),
    )


def _in_words(parts: Mapping[str, Mapping[str, float]], shown: Any) -> str:
    """Return the total of each bar, and its largest part; of many bars those of the first."""
    described = _EACH if len(parts) <= _EACH else 1
    words = []
    for name, each in islice(parts.items(), described):
        total, largest = sum(each.values()), max(each, key=lambda part: each[part])
        share = percent(each[largest] / total) if total else "0 %"
        words.append(f"{name}: {shown(total)}, {share} of it {part_in_words(largest)}")
    if others := [sum(each.values()) for each in parts.values()][described:]:
        ends = dict.fromkeys((shown(min(others)), shown(max(others))))
        words.append(f"the others {' to '.join(ends)}")
    return "; ".join(words)
