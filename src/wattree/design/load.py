"""Study files: YAML → `Study`. Every fault of a file is reported at once; nothing is executed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from wattree.design.axes import axis_of
from wattree.design.check import check_fields
from wattree.design.draft import ALIASES, CLUSTER, check_path
from wattree.design.formula import Formula
from wattree.design.links import links_of
from wattree.design.money import money_notes
from wattree.design.samplers import sampler_of
from wattree.design.schema import ConstraintsSpec, SearchSpec, StudyFile, TargetSpec, WorkloadSpec
from wattree.design.study import (
    AUTO,
    OBJECTIVES,
    Axis,
    Change,
    Study,
    StudyConstraints,
    Target,
    Workload,
)
from wattree.files import read_yaml
from wattree.hardware import Description
from wattree.job.problems import Problems, shown, unknown_key
from wattree.job.schema import JobFile
from wattree.kinds import read_kind, wrong_kind

#: Goes with every change of what is stored, or of what the same study means.
_FORM = 6
#: What changes how results are shown or found, but none of them.
_IDLE = frozenset(
    {"title", "notes", "source", "folder", "digest", "label", "points", "listed", "minutes"}
)
_DIGITS = 24


#: Keys of a job file that a study gives otherwise, or that have no meaning in one.
_ELSEWHERE = {
    "cluster": "the study has one cluster for all workloads",
    "strategy": "it belongs next to the job: workloads[].strategy",
    "place": "a study gives each workload the whole cluster",
    "neighbours": "a study gives each workload the whole cluster",
}


def load_study(path: Path | str) -> Study:
    """Return the study that a YAML file describes.

    Raises:
        JobError: The file is missing, no YAML, or describes no possible study; all problems in
            one.
    """
    path = Path(path)
    return study_from_mapping(
        read_kind(path, "a design study"), str(path), folder=path.parent, name=path.stem
    )


def study_from_mapping(
    mapping: object, source: str = "study", *, folder: Path | None = None, name: str = "study"
) -> Study:
    """Return the study that a mapping with the keys of a study file describes.

    Args:
        mapping: What the YAML holds.
        folder: Where relative paths in it start; None for the current folder.
        name: Name to use if the file states none.

    Raises:
        JobError: It describes no possible study; all problems in one.
    """
    problems = Problems(source)
    if other := wrong_kind(mapping, "a design study"):
        problems.add("", other)
        problems.check()
    spec = problems.read(StudyFile, mapping, "")
    problems.check()
    assert spec is not None
    folder = folder or Path()
    axes = tuple(
        axis
        for axis_name, value in spec.axes.items()
        if (axis := axis_of(axis_name, value, problems=problems)) is not None
    )
    common = _search(spec.search, "search", problems=problems)
    if not spec.workloads:
        problems.add("workloads", "found an empty list, expected at least one workload")
    workloads = [
        _workload(value, f"workloads.{number}", common, folder=folder, problems=problems)
        for number, value in enumerate(spec.workloads)
    ]
    _unlike([w.name for w in workloads if w], "workloads", problems=problems)
    problems.unknown_keys(spec.cluster, CLUSTER, "cluster")
    study = Study(
        name=spec.name or name,
        title=spec.title,
        notes=tuple(spec.notes),
        workloads=tuple(w for w in workloads if w is not None),
        cluster=spec.cluster,
        changes=_changes(spec.changes, problems=problems),
        axes=axes,
        links=() if len(axes) < len(spec.axes) else links_of(spec.links, axes, problems=problems),
        constraints=_constraints(spec.constraints, problems=problems),
        objectives=_objectives(spec.objectives, problems=problems),
        sampler=sampler_of(spec.sampler, axes, problems=problems),
        source=source,
        folder=folder,
    )
    _unlike_paths(study.axes, problems=problems)
    problems.check()
    hardware = check_fields(study)
    notes = (*study.notes, *money_notes(study, dict(hardware)))
    study = replace(study, hardware=hardware, notes=notes)
    return replace(study, digest=digest_of(study))


def _workload(
    value: object,
    where: str,
    common: Mapping[str, Any],
    *,
    folder: Path,
    problems: Problems,
) -> Workload | None:
    before = len(problems.lines)
    spec = problems.read(WorkloadSpec, value, where)
    if spec is None:
        return None
    job: Mapping[str, Any] = {}
    if isinstance(spec.job, str):
        path = folder / spec.job
        with problems.at(f"{where}.job"):
            job = {k: v for k, v in read_yaml(path).items() if k not in _ELSEWHERE}
        folder = path.parent
    else:
        job = spec.job
        for key in job:
            if key in _ELSEWHERE:
                problems.add(f"{where}.job.{key}", f"is not read here: {_ELSEWHERE[key]}")
            elif key not in JobFile.model_fields:
                problems.add(f"{where}.job", unknown_key(key, JobFile.model_fields))
    own = _search(spec.search, f"{where}.search", problems=problems)
    target = _target(spec.target, f"{where}.target", job, problems=problems)
    if len(problems.lines) > before:
        return None
    return Workload(
        name=spec.name,
        weight=spec.weight,
        job=job,
        target=target,
        strategy=AUTO if spec.strategy is None else spec.strategy,
        search={**common, **own},
        folder=folder,
    )


def _target(spec: TargetSpec, where: str, job: Mapping[str, Any], *, problems: Problems) -> Target:
    given = {key: n for key, n in spec.model_dump().items() if n is not None}
    if len(given) > 1:
        problems.add(where, f"found {' and '.join(given)}, expected one of steps, samples, tokens")
    data = job.get("data")
    if "tokens" in given and isinstance(data, Mapping) and "sequence_length" not in data:
        problems.add(
            f"{where}.tokens", "found for samples without data.sequence_length; give samples"
        )
    return Target(**(given or {"steps": 1.0}))


def _search(value: Mapping[str, Any], where: str, *, problems: Problems) -> dict[str, Any]:
    """Return the keys that a section `search` gives, as they stand there."""
    return {} if problems.read(SearchSpec, value, where) is None else dict(value)


def _changes(value: Mapping[str, Any], *, problems: Problems) -> tuple[Change, ...]:
    found = []
    for path, given in value.items():
        if (fault := check_path(str(path))) is not None and path not in ALIASES:
            problems.add("changes", f"'{path:.120}' {fault}")
            continue
        cited = isinstance(given, Mapping) and set(given) == {"value", "source"}
        plain = given["value"] if cited else given
        source = str(given["source"]) if cited else "a change of the study"
        found.append(Change(path=str(path), value=plain, source=source))
    return tuple(found)


def _constraints(value: Mapping[str, Any], *, problems: Problems) -> StudyConstraints:
    spec = problems.read(ConstraintsSpec, value, "constraints")
    if spec is None:
        return StudyConstraints()
    most = {
        "time": spec.deadline,
        "cost": spec.budget,
        "energy": spec.energy,
        "carbon": spec.carbon,
    }
    return StudyConstraints(
        most={name: value for name, value in most.items() if value is not None},
        capital_usd=spec.capital,
        power_w=spec.power,
    )


def _objectives(names: list[str], *, problems: Problems) -> tuple[str, ...]:
    for name in names:
        if name not in OBJECTIVES:
            problems.add("objectives", unknown_key(name, OBJECTIVES).replace("key", "objective"))
    if not names:
        problems.add("objectives", f"found an empty list, expected some of {', '.join(OBJECTIVES)}")
    _unlike(names, "objectives", problems=problems)
    return tuple(names)


def _unlike(names: list[str], where: str, *, problems: Problems) -> None:
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            problems.add(where, f"found {shown(name)} twice, expected different names")


def _unlike_paths(axes: tuple[Axis, ...], *, problems: Problems) -> None:
    """Refuse two axes that set the same field."""
    known: dict[str, str] = {}
    for axis in axes:
        paths = {axis.path} if axis.path else {p for sets in axis.choices.values() for p in sets}
        for path in sorted(paths):
            if path in known:
                problems.add(
                    f"axes.{axis.name}", f"sets {path}, which axis {known[path]} sets; keep one"
                )
            known.setdefault(path, axis.name)


def digest_of(study: Study) -> str:
    """Return a hash of the study, of the hardware files that it names and of its models' files."""
    held = {"form": _FORM, "study": _plain(study), "files": _files(study)}
    text = json.dumps(held, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _plain(value: Any) -> Any:
    """Return plain lists and dictionaries that identify a study, equal in every process."""
    if isinstance(value, Formula):
        return value.text
    if isinstance(value, Description):  # where it lies does not matter
        return _plain(value.mapping)
    if is_dataclass(value):
        return {
            f.name: _plain(getattr(value, f.name))
            for f in fields(value)
            if f.name not in _IDLE | {"hardware"}
        } | ({"hardware": _hardware(value)} if isinstance(value, Study) else {})
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _hardware(study: Study) -> list[str]:
    """Return what the hardware files hold, wherever they lie."""
    return sorted(json.dumps(_plain(d), sort_keys=True) for d in study.hardware.values())


def _files(study: Study) -> list[str]:
    """Return hashes of files that workloads name: models of the user's own."""
    found = []
    for workload in study.workloads:
        for text in _texts(workload.job):
            path = workload.folder / text.partition(":")[0]
            if "/" in text or text.endswith((".py", ".json", ".yaml")) or ".py:" in text:
                found.append(_hash(path))
    return found


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def _hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "none"
