"""From the values of a point to the cluster and the settings that they mean."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from wattree.design.draft import ALIASES, Draft
from wattree.design.fields import written
from wattree.design.points import Value
from wattree.design.schema import SearchSpec
from wattree.design.study import AUTO, Axis, AxisLink, Change, Study, Workload
from wattree.errors import JobError, UnitError
from wattree.hardware import Description

#: Fields that name files; what is in those can be set only once they are named.
_NAMING = ("node.device", "node.fabric")


def drafted(
    study: Study, values: Mapping[str, Value], hardware: MutableMapping[str, Description]
) -> Draft:
    """Return the cluster of a point, in the making.

    Args:
        values: Axis → value.
        hardware: What files hold, to which those that are read are added.

    Raises:
        JobError: A value cannot be set, or a link has none.
    """
    draft = Draft(
        source=study.source, folder=study.folder, hardware=hardware, section=dict(study.cluster)
    )
    changes = [*study.changes, *(c for axis in study.axes for c in _set_by(axis, values))]
    for change in changes:
        if change.path.startswith("cluster."):
            draft.set(change.path, change.value, change.source)
    draft.open()
    inside = [change for change in changes if not change.path.startswith("cluster.")]
    for change in sorted(inside, key=lambda change: change.path not in _NAMING):
        _set(draft, change)
    for axis in study.axes:
        if axis.scales:
            _scale(draft, axis, values[axis.name])
    _link(draft, study, values)
    return draft


def _set_by(axis: Axis, values: Mapping[str, Value]) -> list[Change]:
    """Return what an axis sets at its value."""
    value, note = values[axis.name], f"axis {axis.name} of the study"
    if axis.scales:
        return []
    if axis.choices:
        chosen = axis.choices[str(value)]
        return [Change(path=path, value=given, source=note) for path, given in chosen.items()]
    text: Any = value
    if axis.unit is not None and isinstance(value, int | float):
        text = written(value, axis.unit, axis.factor)
    return [Change(path=axis.path, value=text, source=note)]


def _set(draft: Draft, change: Change) -> None:
    if change.path in ALIASES:
        several = " and ".join(ALIASES[change.path])
        problem = f"stands for {several}, which have values of their own; give a factor: x2"
        raise JobError(draft.source, [f"{change.path}: {problem}"])
    if isinstance(factor := factor_in(change.value), float):
        try:
            draft.scale(change.path, factor, change.source)
        except UnitError as error:
            raise JobError(draft.source, [f"{change.path}: {error}"]) from error
        return
    draft.set(change.path, change.value, change.source)


def factor_in(value: object) -> float | None:
    """Return the factor that a text such as `x1.5` writes; None if it writes none."""
    if not isinstance(value, str) or value[:1] not in {"x", "×"}:
        return None
    try:
        factor = float(value[1:])
    except ValueError:
        return None
    return factor if 0 < factor < float("inf") else None


def _scale(draft: Draft, axis: Axis, value: Value) -> None:
    try:
        draft.scale(axis.path, float(value), f"axis {axis.name} of the study")
    except UnitError as error:
        raise JobError(draft.source, [f"axes.{axis.name}: {error}"]) from error


def _link(draft: Draft, study: Study, values: Mapping[str, Value]) -> None:
    """Set the fields that follow from axes."""
    found: dict[str, float] = {}
    for link in study.links:
        base = draft.number(link.path, link.factor) if link.path else None
        try:
            found[link.name] = _value(link, study, values, found, base)
        except UnitError as error:
            raise JobError(draft.source, [f"links.{link.name}: {error}"]) from error
        if link.path:
            number = found[link.name]
            text: Any = number if link.unit is None else f"{number:.12g} {link.unit}"
            if link.unit is None and number.is_integer():
                text = int(number)
            draft.set(link.path, text, f"{link.source} ({link.formula.text})")


def _value(
    link: AxisLink,
    study: Study,
    values: Mapping[str, Value],
    found: Mapping[str, float],
    base: float | None,
) -> float:
    numbers = dict(found)
    for name in link.formula.names:
        if name == "base":
            if base is None:
                raise UnitError(f"{link.path} has no value that 'base' could stand for")
            numbers[name] = base
        elif name not in found:
            axis = study.axis(name)
            factor = link.units[name][1] if name in link.units else axis.factor
            numbers[name] = float(values[name]) / factor
    return link.formula.value(numbers)


def job_mapping(workload: Workload, draft: Draft) -> dict[str, Any]:
    """Return the keys of the job file of a workload, without its cluster."""
    mapping: dict[str, Any] = dict(workload.job)
    if workload.strategy != AUTO:
        mapping["strategy"] = workload.strategy
    for path, value in draft.job.items():
        mapping = _with(mapping, path.split("."), value)
    return mapping


def search_of(workload: Workload, draft: Draft) -> SearchSpec:
    """Return the search space of a workload at a point."""
    return SearchSpec.model_validate({**workload.search, **draft.search})


def _with(mapping: dict[str, Any], keys: list[str], value: Any) -> dict[str, Any]:
    """Return a copy with `value` at a path; a name on the way is what its mapping calls `name`."""
    key, *rest = keys
    if not rest:
        return {**mapping, key: value}
    inner = mapping.get(key)
    if isinstance(inner, str):
        inner = {"preset" if key in {"strategy", "loader"} else "name": inner}
    return {**mapping, key: _with(inner if isinstance(inner, dict) else {}, rest, value)}
