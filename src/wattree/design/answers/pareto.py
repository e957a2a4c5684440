"""Pareto-optimal points of several objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.design.answers.sweep import NoAnswer, Sweep
from wattree.search.pareto import undominated


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The Pareto front of a study.

    Attributes:
        objectives: Measures that are to be small, the first being what points are ordered by.
        points: By rising first objective. Of points that are equal in all objectives the first
            stands for all.
        equals: Point of the front → others with the very same objectives.
        unknown: Feasible points that lack one of the objectives and were left out.
    """

    objectives: tuple[str, ...]
    points: Integers
    equals: Mapping[int, tuple[int, ...]]
    unknown: int


def pareto(sweep: Sweep, objectives: Sequence[str]) -> Front | NoAnswer:
    """Return the front of two or three measures (of one: its best points)."""
    columns = []
    for name in objectives:
        column = sweep.measure(name)
        if isinstance(column, NoAnswer):
            return column
        columns.append(column)
    if not columns or len(set(objectives)) < len(objectives):
        return NoAnswer("a front needs one or more objectives, each once")
    table = np.stack(columns, axis=1)
    known = np.flatnonzero(np.isfinite(table).all(axis=1))
    if not len(known):
        return NoAnswer(f"no feasible point has all of {', '.join(objectives)}")
    points = known[undominated(table[known])]
    return Front(
        objectives=tuple(objectives),
        points=points,
        equals=_equals(table, known, points),
        unknown=int(sweep.feasible.sum()) - len(known),
    )


def _equals(table: Floats, known: Integers, points: Integers) -> dict[int, tuple[int, ...]]:
    _, kinds = np.unique(table[known], axis=0, return_inverse=True)
    kinds = kinds.reshape(-1)
    at = dict(zip(known.tolist(), kinds.tolist(), strict=True))
    chosen = np.isin(kinds, [at[point] for point in points.tolist()])
    groups: dict[int, list[int]] = {}
    for point in known[chosen].tolist():
        groups.setdefault(at[point], []).append(point)
    return {
        point: tuple(other for other in groups[at[point]] if other != point)
        for point in points.tolist()
        if len(groups[at[point]]) > 1
    }
