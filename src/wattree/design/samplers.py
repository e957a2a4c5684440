"""Selection of a study's points: all combinations, listed, random or guided."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from wattree.design.points import DesignPoint, Value, point_of
from wattree.design.schema import MOST_POINTS, SamplerSpec
from wattree.design.study import Axis, Sampler, Study
from wattree.job.problems import Problems, shown, unknown_key
from wattree.units import any_quantity

GUIDED = "guided"
#: Draws of one point before what is left of the space is taken to be empty.
_MOST_DRAWS = 200


def sampler_of(value: Mapping[str, Any], axes: Sequence[Axis], *, problems: Problems) -> Sampler:
    """Return the sampler of a file, after adding its problems to the list."""
    spec = problems.read(SamplerSpec, value, "sampler")
    if spec is None:
        return Sampler()
    listed: tuple[dict[str, Value], ...] = ()
    if (spec.listed is not None) != (spec.kind == "list"):
        what = "is missing, expected a list of mappings of axes to values"
        problems.add(
            "sampler.listed",
            what if spec.listed is None else f"found together with kind: {spec.kind}",
        )
    elif spec.listed is not None:
        listed = tuple(
            _point(each, axes, f"sampler.listed.{number}", problems=problems)
            for number, each in enumerate(spec.listed)
        )
        if not listed:
            problems.add("sampler.listed", "found an empty list, expected at least one point")
    if spec.kind in {"random", GUIDED} and spec.points is None:
        problems.add("sampler.points", "is missing, expected how many points are tried")
    if spec.kind == "grid":
        _check_grid(spec, axes, problems=problems)
    if spec.kind == "list" and spec.points is not None:
        problems.add("sampler.points", "found together with a list, which sets it; leave it out")
    return Sampler(
        kind=spec.kind,
        points=spec.points,
        minutes=spec.minutes,
        seed=spec.seed,
        batch=spec.batch,
        listed=listed,
    )


def space_size(axes: Sequence[Axis]) -> float:
    """Return how many points the axes span; infinite where one has a range to draw from."""
    return math.prod(math.inf if axis.sampled else len(axis.values) for axis in axes)


def points_of(study: Study) -> list[DesignPoint]:
    """Return the points of a study whose sampler does not wait for outcomes, each once."""
    sampler = study.sampler
    assert sampler.kind != GUIDED
    if sampler.kind == "list":
        found = [point_of(values) for values in sampler.listed]
    elif sampler.kind == "grid" or space_size(study.axes) <= (sampler.points or 0):
        found = list(_grid(study.axes))
    else:
        found = list(_random(study.axes, sampler))
    return list({point.key: point for point in found}.values())


def drawn_value(axis: Axis, share: float) -> Value:
    """Return the value of an axis at a share of its span, from 0 to 1."""
    if axis.sampled is None:
        return axis.values[min(int(share * len(axis.values)), len(axis.values) - 1)]
    first, last = float(axis.values[0]), float(axis.values[1])
    if axis.sampled == "log":
        value = math.exp(math.log(first) + share * (math.log(last) - math.log(first)))
    else:
        value = first + share * (last - first)
    value = min(max(value, first), last)
    return round(value) if axis.whole else float(f"{value:.12g}")


def _grid(axes: Sequence[Axis]) -> Iterator[DesignPoint]:
    names = [axis.name for axis in axes]
    for values in itertools.product(*(axis.values for axis in axes)):
        yield point_of(dict(zip(names, values, strict=True)))


def _random(axes: Sequence[Axis], sampler: Sampler) -> Iterator[DesignPoint]:
    """Yield different points, independent of earlier draws."""
    known: set[str] = set()
    for number in range(sampler.points or 0):
        draw = np.random.default_rng([sampler.seed, number])
        for _ in range(_MOST_DRAWS):
            shares = draw.random(len(axes))
            point = point_of(
                {a.name: drawn_value(a, float(s)) for a, s in zip(axes, shares, strict=True)}
            )
            if point.key not in known:
                known.add(point.key)
                yield point
                break


def _check_grid(spec: SamplerSpec, axes: Sequence[Axis], *, problems: Problems) -> None:
    for axis in axes:
        if axis.sampled:
            problems.add(
                f"axes.{axis.name}.points",
                "is missing, expected how many values of the range a grid has; or draw from it: "
                "sampler: {kind: random, points: 200}",
            )
    size, most = space_size(axes), spec.points or MOST_POINTS
    if math.isfinite(size) and size > most:
        spans = " x ".join(f"{len(axis.values)} {axis.name}" for axis in axes)
        budget = f"the {most:,} of sampler.points" if spec.points else f"{most:,}"
        problems.add(
            "axes",
            f"span {int(size):,} points ({spans}), more than {budget}; give fewer values, or try "
            f"some of them: sampler: {{kind: guided, points: {min(most, 300)}}}, or kind: random",
        )


def _point(
    given: Mapping[str, Any], axes: Sequence[Axis], where: str, *, problems: Problems
) -> dict[str, Value]:
    """Return a listed point, values in SI units."""
    found: dict[str, Value] = {}
    named = {axis.name: axis for axis in axes}
    for name in given:
        if name not in named:
            problems.add(where, unknown_key(name, named).replace("key", "axis", 1))
    for name, axis in named.items():
        if name not in given:
            problems.add(f"{where}.{name}", "is missing, expected a value of the axis")
            continue
        value = given[name]
        quantity = any_quantity(value) if isinstance(value, str) else None
        number = quantity[0] if quantity is not None else value
        known = axis.values if axis.sampled is None else ()
        inside = axis.sampled and isinstance(number, int | float)
        if not (inside and float(axis.values[0]) <= number <= float(axis.values[1])):
            close = [k for k in known if k == number and type(k) is type(number)]
            if not close:
                problems.add(
                    f"{where}.{name}", f"found {shown(value)}, which the axis does not have"
                )
                continue
            number = close[0]
        found[name] = number
    return found
