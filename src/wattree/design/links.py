"""The section `links`: fields derived from axes, with the source of the relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wattree.design.axes import name_fault
from wattree.design.draft import check_path
from wattree.design.formula import formula_of
from wattree.design.schema import LinkSpec
from wattree.design.study import Axis, AxisLink
from wattree.errors import UnitError
from wattree.job.problems import Problems, shown
from wattree.units import UNITS, any_quantity


def links_of(
    value: Mapping[str, Any], axes: Sequence[Axis], *, problems: Problems
) -> tuple[AxisLink, ...]:
    """Return the links of a file, in its order, after adding the problems of others to the list.

    A formula may take axes that have numbers, links before it, and `base`.
    """
    found: list[AxisLink] = []
    named = {axis.name: axis for axis in axes}
    for name, given in value.items():
        where = f"links.{name}"
        if (fault := name_fault(name)) or name in named:
            problems.add("links", fault or f"found {shown(name)}, which is the name of an axis")
            continue
        spec = problems.read(LinkSpec, given, where)
        if spec is None:
            continue
        link = _link(name, spec, where, named, [link.name for link in found], problems=problems)
        if link is not None:
            found.append(link)
    return tuple(found)


def _link(
    name: str,
    spec: LinkSpec,
    where: str,
    axes: Mapping[str, Axis],
    earlier: Sequence[str],
    *,
    problems: Problems,
) -> AxisLink | None:
    before = len(problems.lines)
    if spec.path and (fault := check_path(spec.path)):
        problems.add(f"{where}.path", f"'{spec.path:.120}' {fault}")
    if spec.path.startswith(("job.", "search.")):
        problems.add(f"{where}.path", "is of no cluster; links set fields of hardware and capital")
    if not spec.source.strip():
        problems.add(f"{where}.source", "found an empty text, expected where the relation is from")
    factor = _factor(spec.unit, f"{where}.unit", problems=problems)
    units = {}
    for axis, unit in spec.units.items():
        if axis not in axes:
            problems.add(f"{where}.units", f"found {shown(axis)}, which is no axis")
            continue
        size = _factor(unit, f"{where}.units.{axis}", problems=problems)
        own = axes[axis].unit
        if own is None or _dimension(own) != _dimension(unit):
            varied = own or "numbers"
            problems.add(
                f"{where}.units.{axis}",
                f"found {shown(unit)}, but axes.{axis} is in {varied}; expected units of one kind",
            )
        units[axis] = (unit, size)
    numeric = {n for n, axis in axes.items() if not axis.choices and _has_numbers(axis)}
    known = frozenset({*numeric, *earlier, *(("base",) if spec.path else ())})
    try:
        formula = formula_of(spec.formula, known)
    except UnitError as error:
        problems.add(f"{where}.formula", str(error))
        return None
    if len(problems.lines) > before:
        return None
    return AxisLink(
        name=name,
        path=spec.path,
        formula=formula,
        unit=spec.unit,
        factor=factor,
        source=spec.source,
        units=units,
    )


def _has_numbers(axis: Axis) -> bool:
    return not any(isinstance(value, str | bool) for value in axis.values)


def _factor(unit: str | None, where: str, *, problems: Problems) -> float:
    """Return the SI value of one unit, or 1 after noting that there is none such."""
    if unit is None:
        return 1.0
    quantity = any_quantity(f"1 {unit}")
    if quantity is None:
        known = ", ".join(next(iter(units)) for units in UNITS.values())
        problems.add(where, f"found {shown(unit)}, expected a unit, such as one of {known}")
        return 1.0
    return quantity[2]


def _dimension(unit: str) -> str | None:
    return next((dimension for dimension, units in UNITS.items() if unit in units), None)
