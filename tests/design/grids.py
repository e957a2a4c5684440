"""Sweeps over a grid, without simulating anything."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from wattree.design.answers import (
    AxisColumn,
    Sweep,
    Value,
)

__all__ = ["Law", "Place", "grid"]


Place = SimpleNamespace
Law = Callable[[Place], Any]


def grid(
    axes: Mapping[str, Sequence[Value]], feasible: Law = lambda _: True, **measures: Law
) -> Sweep:
    """Return the sweep of a full grid; measures are functions of the axes' values."""
    points = list(itertools.product(*axes.values()))
    places = [Place(**dict(zip(axes, point, strict=True))) for point in points]
    columns = []
    for place, (name, levels) in enumerate(axes.items()):
        codes = np.array([levels.index(point[place]) for point in points])
        columns.append(
            AxisColumn(name=name, label=name, unit=None, levels=tuple(levels), codes=codes)
        )
    fits = np.array([bool(feasible(place)) for place in places])
    found = {
        name: np.array(
            [float(law(p)) if fit else np.nan for p, fit in zip(places, fits, strict=True)]
        )
        for name, law in measures.items()
    }
    return Sweep(axes=tuple(columns), measures=found, feasible=fits)
