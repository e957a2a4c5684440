"""The section `axes`: values as files write them → numbers in SI units, names and choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wattree.design.assign import factor_in
from wattree.design.draft import ALIASES, check_path
from wattree.design.formula import FUNCTIONS
from wattree.design.points import Value
from wattree.design.schema import AxisSpec
from wattree.design.study import Axis
from wattree.job.problems import Problems, shown
from wattree.units import UNITS, any_quantity

#: Names that formulas use for something else.
_RESERVED = frozenset({*FUNCTIONS, "base"})
#: Values of one axis; more are a range to sample.
_MOST_VALUES = 10_000


def name_fault(name: str) -> str | None:
    """Return why an axis or a link cannot be called `name`; None if it can."""
    if not name.isascii() or not name.isidentifier() or name in _RESERVED:
        return (
            f"found the name {shown(name)}, expected letters, digits and underscores that formulas "
            f"can use, other than {', '.join(sorted(_RESERVED))}"
        )
    return None


def axis_of(name: str, value: object, *, problems: Problems) -> Axis | None:
    """Return an axis of the file, or None after adding its problems to the list."""
    where, before = f"axes.{name}", len(problems.lines)
    if fault := name_fault(name):
        problems.add("axes", fault)
    spec = problems.read(AxisSpec, value, where)
    if spec is None:
        return None
    _check_keys(spec, where, problems=problems)
    if len(problems.lines) > before:
        return None
    label = spec.label or name
    if spec.choices is not None:
        return _choices(name, spec.choices, label, where, problems=problems)
    return _varied(name, spec, label, where, problems=problems)


def _varied(
    name: str, spec: AxisSpec, label: str, where: str, *, problems: Problems
) -> Axis | None:
    """Return an axis of one field."""
    before, path = len(problems.lines), str(spec.path)
    if (fault := check_path(path)) is not None and path not in ALIASES:
        problems.add(f"{where}.path", f"'{path:.120}' {fault}")
    given = spec.values if spec.range is None else spec.range
    key = "values" if spec.range is None else "range"
    read = _values(given or [], f"{where}.{key}", problems=problems)
    if read is None:
        return None
    values, unit, factor, scales = read
    if path in ALIASES and not scales:
        several = " and ".join(ALIASES[path])
        problems.add(
            f"{where}.{key}",
            f"found {shown(given)}, expected factors such as x2, as {path} stands for {several}",
        )
    whole, sampled = all(type(each) is int for each in values), None
    if spec.range is not None:
        values, sampled = _range(values, spec, where, whole=whole, problems=problems)
    if len(problems.lines) > before:
        return None
    return Axis(
        name=name,
        path=path,
        values=values,
        unit=unit,
        factor=factor,
        label=label,
        scales=scales,
        sampled=sampled,
        whole=whole,
    )


def _check_keys(spec: AxisSpec, where: str, *, problems: Problems) -> None:
    given = [key for key in ("values", "range", "choices") if getattr(spec, key) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        problems.add(where, f"found {found}, expected one of values, range and choices")
        return
    if (spec.path is None) != (given == ["choices"]):
        what = "is missing, expected a dotted path such as device.memory"
        twice = "found together with choices, whose entries name their own paths; leave it out"
        problems.add(f"{where}.path", what if spec.path is None else twice)
    if given != ["range"]:
        for key in {"points", "spacing"} & spec.model_fields_set:
            problems.add(f"{where}.{key}", "found without a range; give range: [FIRST, LAST]")
    if given == ["values"] and not 1 <= len(spec.values or ()) <= _MOST_VALUES:
        problems.add(f"{where}.values", f"found {shown(spec.values)}, expected at least one value")
    if given == ["range"] and len(spec.range or ()) != 2:
        problems.add(f"{where}.range", f"found {shown(spec.range)}, expected [FIRST, LAST]")


def _choices(
    name: str,
    choices: Mapping[str, Mapping[str, Any]],
    label: str,
    where: str,
    *,
    problems: Problems,
) -> Axis | None:
    """Return an axis whose values are names of several fields' values."""
    before = len(problems.lines)
    if not choices:
        problems.add(f"{where}.choices", "found an empty mapping, expected at least one choice")
    for choice, sets in choices.items():
        for path, value in sets.items():
            fault = check_path(path)
            if fault is not None and not (path in ALIASES and factor_in(value)):
                problems.add(f"{where}.choices.{choice}", f"'{path:.120}' {fault}")
    if len(problems.lines) > before:
        return None
    return Axis(
        name=name,
        path="",
        values=tuple(choices),
        unit=None,
        label=label,
        choices={choice: dict(sets) for choice, sets in choices.items()},
    )


def _values(
    given: Sequence[Any], where: str, *, problems: Problems
) -> tuple[tuple[Value, ...], str | None, float, bool] | None:
    """Return values in SI units, their unit with its SI value, and whether they are factors."""
    kinds = {_kind(value) for value in given}
    if len(kinds) > 1 or "none" in kinds:
        found = ", ".join(shown(value) for value in given[:6])
        lists = any(isinstance(value, list | dict) for value in given)
        hint = "; choices take lists, such as choices: {both: {search.tp: [1, 2]}}" * lists
        problems.add(
            where,
            f"found {found}, expected quantities of one dimension, or numbers, or names{hint}",
        )
        return None
    (kind,) = kinds
    unit, factor = None, 1.0
    values: list[Value] = list(given)
    if kind == "factor":
        values = [float(factor_in(value) or 1.0) for value in given]
    elif kind not in {"number", "truth", "name"}:
        read = [quantity for value in given if (quantity := any_quantity(value)) is not None]
        values = [quantity[0] for quantity in read]
        _, unit, factor = read[0]
    twice = [value for index, value in enumerate(values) if value in values[:index]]
    if twice:
        at = values.index(twice[0])
        problems.add(where, f"found {shown(given[at])} twice, expected different values")
        return None
    return tuple(values), unit, factor, kind == "factor"


def _kind(value: object) -> str:
    """Return what kind of value stands in a list: those of one axis are of one kind."""
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | float):
        return "number"
    if not isinstance(value, str) or not value.strip():
        return "none"
    if factor_in(value) is not None:
        return "factor"
    if any_quantity(value) is None:
        return "name"
    unit = any_quantity(value)[1]  # type: ignore[index]
    return next(dimension for dimension, units in UNITS.items() if unit in units)


def _range(
    ends: tuple[Value, ...], spec: AxisSpec, where: str, *, whole: bool, problems: Problems
) -> tuple[tuple[Value, ...], str | None]:
    """Return the values of a range and, where they are to be drawn, how they are spaced."""
    first, last = ends
    low, high = (shown(end) for end in spec.range or ())
    fault = ""
    if isinstance(first, str | bool) or isinstance(last, str | bool):
        fault = f"found {low}, expected two quantities or numbers"
    elif not first < last:
        fault = f"found {low} to {high}, which holds no value; expected the lower end first"
    elif spec.spacing == "log" and first <= 0:
        fault = f"found {low}, expected above 0 for log spacing"
    if fault:
        problems.add(f"{where}.range", fault)
        return ends, None
    if spec.points is None:
        return ends, spec.spacing
    space = np.geomspace if spec.spacing == "log" else np.linspace
    steps = [float(f"{v:.12g}") for v in space(float(first), float(last), spec.points).tolist()]
    values: list[Value] = list(dict.fromkeys(round(v) for v in steps)) if whole else [*steps]
    values[0], values[-1] = first, last
    return tuple(values), None
