"""Reading of foreign files: automatic values, and settings without effect on a step."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel

from wattree.files import read_yaml
from wattree.frameworks.settings import meant_section
from wattree.job.problems import Problems

#: Programs without a reader → keys that only their files have.
_PROGRAMS: Final[Mapping[str, list[Any]]] = read_yaml(Path(__file__).with_name("foreign.yaml"))
#: What the Hugging Face libraries fill in themselves.
_AUTOMATIC: Final = "auto"
#: Values that ask for nothing.
_SAYING_NOTHING: Final[tuple[object, ...]] = (None, False, "", "none", {})


def foreign_program(keys: AbstractSet[str], read: Collection[str] = ()) -> str:
    """Return why settings with such keys are refused; empty for those of no other program.

    Args:
        keys: Of the settings.
        read: Programs whose settings are read.
    """
    for program, own in _PROGRAMS.items():
        if program not in read and any(
            keys >= set(each if isinstance(each, list) else own) for each in own
        ):
            return (
                f"found a configuration of {program}, which no reader here reads; write its values "
                "as a job, or import what it starts (DeepSpeed's JSON, Accelerate's YAML, the "
                "command)"
            )
    return ""


def without_automatic(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return settings without those that are `auto`, and the places of these."""
    found: dict[str, Any] = {}
    places: list[str] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            found[key], inner = without_automatic(value)
            places += [f"{key}.{place}" for place in inner]
        elif value == _AUTOMATIC:
            places.append(key)
        else:
            found[key] = value
    return found, places


def without(values: Mapping[str, Any], places: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Return settings without those at `places`, and which of these say something.

    Args:
        values: As read.
        places: Keys, dotted in sections.
    """
    found = copy.deepcopy(dict(values))
    removed = []
    for place in places:
        *sections, key = place.split(".")
        inner: Any = found
        for section in sections:
            inner = inner.get(section) if isinstance(inner, dict) else None
        says_something = isinstance(inner, dict) and inner.pop(key, None) not in _SAYING_NOTHING
        removed += [place] if says_something else []
    return found, removed


def flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of settings."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def known_of(model: type[BaseModel], values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that a section has, and the dotted keys of all others.

    Args:
        model: The section; sections within it are fields whose type is one.
        values: As read.
    """
    known: dict[str, Any] = {}
    unknown: list[str] = []
    for key, value in values.items():
        field = model.model_fields.get(key)
        inner = _section_in(field.annotation) if field is not None else None
        if field is None:
            unknown += list(flattened({key: value}))
        elif inner is not None and isinstance(value, Mapping):
            known[key], others = known_of(inner, value)
            unknown += [f"{key}.{other}" for other in others]
        else:
            known[key] = value
    return known, unknown


def refuse_sections(
    model: type[BaseModel], values: Mapping[str, Any], problems: Problems, within: str = ""
) -> None:
    """Add the sections of a file that are unknown, next to missing ones of a similar name.

    Args:
        model: What is known; sections within it are looked at too.
        values: As read, less what is ignored.
        problems: Takes them.
        within: Key of the section that `values` are of, with a dot.
    """
    missing = model.model_fields.keys() - values.keys()
    for key, value in values.items():
        if not isinstance(value, Mapping):
            continue
        field = model.model_fields.get(key)
        inner = _section_in(field.annotation) if field is not None else None
        if inner is not None:
            refuse_sections(inner, value, problems, f"{within}{key}.")
        elif field is None and (meant := meant_section(str(key), missing)):
            problems.add(f"{within}{key}", f"is unknown; did you mean '{meant}'?")


def _section_in(annotation: Any) -> type[BaseModel] | None:
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None
