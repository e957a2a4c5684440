"""A workload at a point: the keys of its job file, and its search space."""

from __future__ import annotations

from typing import Any

from wattree.design.draft import Draft
from wattree.design.schema import SearchSpec
from wattree.design.study import AUTO, Workload


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
