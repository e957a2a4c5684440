"""Whether the fields of a study exist and take its values: asked of the readers themselves.

Each value of each axis is set alone, the other axes at their first values. What a reader refuses at
the path of that axis is the study's fault; what it refuses elsewhere may be corrected by another
axis, and is reported at the points where it is not.
"""

from __future__ import annotations

from collections.abc import Iterator

from wattree.design.assign import drafted, job_mapping
from wattree.design.draft import ALIASES, Draft
from wattree.design.points import Value
from wattree.design.schema import SearchSpec
from wattree.design.study import Axis, Study
from wattree.errors import JobError, WattreeError
from wattree.hardware import Cluster, Description
from wattree.job import job_from_mapping
from wattree.job.problems import Problems

#: More values of one axis than this are alike to readers: its first, its last, and some between.
_MOST_CHECKED = 24


def check_fields(study: Study) -> dict[str, Description]:
    """Return what all hardware files hold that the study names.

    Raises:
        JobError: An axis, a change or a link names no field, or gives one what it cannot take.
    """
    hardware: dict[str, Description] = {}
    problems = Problems(study.source)
    first = {axis.name: axis.values[0] for axis in study.axes}
    for line in _refused(study, first, hardware):
        if place := _place(study, line):
            problems.add(place, line)
    for axis in study.axes:
        for value in _checked(axis)[1:]:
            for line in _refused(study, first | {axis.name: value}, hardware):
                if _is_at(line, _paths(axis, value)):
                    problems.add(f"axes.{axis.name}", line)
    if not study.axes or not problems.lines:
        _check_base(study, hardware, problems)
    problems.lines = list(dict.fromkeys(problems.lines))
    problems.check()
    return hardware


def _check_base(study: Study, hardware: dict[str, Description], problems: Problems) -> None:
    """Refuse a study in which no value gives a cluster: its base is wrong then."""
    first: dict[str, Value] = {axis.name: axis.values[0] for axis in study.axes}
    points = [first, *({**first, a.name: v} for a in study.axes for v in _checked(a)[1:])]
    refused: list[str] = []
    for values in points:
        refused = _refused(study, values, hardware)
        if not refused:
            return
    problems.lines += refused


def _checked(axis: Axis) -> tuple[Value, ...]:
    if axis.choices or len(axis.values) <= _MOST_CHECKED or isinstance(axis.values[0], str):
        return axis.values
    step = len(axis.values) // _MOST_CHECKED + 1
    return (*axis.values[::step], axis.values[-1])


def _refused(study: Study, values: dict[str, Value], hardware: dict[str, Description]) -> list[str]:
    """Return what readers refuse of a point, each line beginning with a path of the study."""
    try:
        draft = drafted(study, values, hardware)
        cluster = draft.cluster()
        draft.bought()
        return [*_refused_jobs(study, draft, cluster), *_refused_search(draft)]
    except JobError as error:
        return list(error.problems)
    except WattreeError as error:
        return [str(error)]


def _refused_jobs(study: Study, draft: Draft, cluster: Cluster) -> Iterator[str]:
    for number, workload in enumerate(study.workloads):
        try:
            job_from_mapping(
                job_mapping(workload, draft),
                study.source,
                folder=workload.folder,
                cluster=cluster,
            )
        except JobError as error:
            for line in error.problems:
                in_axis = any(_is_at(line, {path}) for path in draft.job)
                yield f"job.{line}" if in_axis else f"workloads.{number}.job.{line}"


def _refused_search(draft: Draft) -> list[str]:
    problems = Problems(draft.source)
    problems.read(SearchSpec, draft.search, "search")
    return problems.lines


def _place(study: Study, line: str) -> str | None:
    """Return what of the study sets the path that a line is about; None if nothing of it does."""
    for axis in study.axes:
        if _is_at(line, _paths(axis, axis.values[0])):
            return f"axes.{axis.name}"
    if any(_is_at(line, {change.path}) for change in study.changes):
        return "changes"
    if line.startswith(("axes.", "links.")):
        return ""
    return next((f"links.{link.name}" for link in study.links if _is_at(line, {link.path})), None)


def _paths(axis: Axis, value: Value) -> set[str]:
    if axis.choices:
        return set(axis.choices[str(value)])
    return {axis.path, *ALIASES.get(axis.path, ())}


def _is_at(line: str, paths: set[str]) -> bool:
    """Return whether a line is about one of the fields, about a part of it, or what it is in."""
    place = line.partition(": ")[0]
    return any(
        place == path or place.startswith(f"{path}.") or path.startswith(f"{place}.")
        for path in paths
        if path
    )
