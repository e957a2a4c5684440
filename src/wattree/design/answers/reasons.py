"""Why one kind is best: differences to the best point of every other kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from wattree.design.answers.sweep import NoAnswer, Sweep
from wattree.design.points import Value
from wattree.design.results import Results

#: Axes with more kinds are lists of points, not choices.
_MOST_KINDS = 12
#: Measure → what a workload's step has of it, in parts.
_PARTS = {"time_s": "time_parts_s", "energy_j": "energy_by_stage_j"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KindReason:
    """The best point against the one that stands for another kind.

    Attributes:
        axis: Of names, such as kinds of clusters.
        winner, other: Its values at the best point and at the other one.
        measure: By which the best of each kind is chosen.
        share: By which the best point has less of it, of the other's.
        change: Objective → change from the other to the best point, as a share; where known.
        saved: Part of the step's time or energy, if that is the measure → what the best point has
            less of it, to the target, most first; negative where it has more; empty where steps of
            either were not simulated. [s, J]
    """

    axis: str
    winner: Value
    other: Value
    point: int
    measure: str
    share: float
    change: Mapping[str, float]
    saved: Mapping[str, float]


def kind_reasons(results: Results, sweep: Sweep, measure: str) -> tuple[KindReason, ...]:
    """Return why the point with the least of a measure wins, kind by kind, the closest first."""
    values, best = sweep.measure(measure), sweep.best(measure)
    if isinstance(values, NoAnswer) or isinstance(best, NoAnswer):
        return ()
    found = []
    for axis in sweep.axes:
        if axis.numeric or not 1 < len(axis.levels) <= _MOST_KINDS:
            continue
        for point in sweep.representatives(axis, measure, np.ones(len(sweep), dtype=bool)):
            if point < 0 or axis.codes[point] == axis.codes[best]:
                continue
            reason = KindReason(
                axis=axis.name,
                winner=axis.value(best),
                other=axis.value(point),
                point=int(point),
                measure=measure,
                share=float(1.0 - values[best] / values[point]),
                change=dict(_changes(sweep, best, int(point))),
                saved=dict(_saved(results, measure, best, int(point))),
            )
            found.append(reason)
    order = [axis.name for axis in sweep.axes]
    return tuple(sorted(found, key=lambda each: (order.index(each.axis), each.share)))


def _changes(sweep: Sweep, best: int, other: int) -> Iterator[tuple[str, float]]:
    for name in sweep.objectives:
        values = sweep.measures.get(name)
        if values is not None and values[other] > 0 and np.isfinite(values[best]):
            yield name, float(values[best] / values[other] - 1.0)


def _saved(results: Results, measure: str, best: int, other: int) -> Iterator[tuple[str, float]]:
    """Yield part of a step → what the best point has less of it to the target, most first."""
    if (name := _PARTS.get(measure)) is None:
        return
    first, second = _parts(results, name, best), _parts(results, name, other)
    if first is not None and second is not None:
        saved = {part: second.get(part, 0.0) - first.get(part, 0.0) for part in first | second}
        yield from sorted(saved.items(), key=lambda item: -item[1])


def _parts(results: Results, name: str, point: int) -> dict[str, float] | None:
    """Return part → its sum to the target over all workloads; None where one has no parts."""
    found: dict[str, float] = {}
    weights = {each.name: each.weight for each in results.study.workloads}
    for one in results.outcomes[point].workloads:
        parts: Mapping[str, float] = getattr(one, name)
        if not parts or one.time_s is None or not one.step_time_s:
            return None
        scale = weights[one.workload] * one.time_s / one.step_time_s
        for part, value in parts.items():
            found[part] = found.get(part, 0.0) + scale * value
    return found
