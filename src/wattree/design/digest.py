"""The digest of a study: equal for studies with equal inputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from wattree.design.formula import Formula
from wattree.design.study import Study
from wattree.hardware import Description

#: Goes with every change of what is stored, or of what the same study means.
_FORM = 1
#: What changes how results are shown or found, but none of them.
_IDLE = frozenset(
    {"title", "notes", "source", "folder", "digest", "label", "points", "listed", "minutes"}
)
_DIGITS = 24


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
