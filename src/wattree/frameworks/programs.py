"""Programs that start a framework with names and defaults of their own, and what these mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from wattree.frameworks.shell_flags import commands_of
from wattree.job.problems import shown


def as_started(
    values: Mapping[str, Any], text: str, programs: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return arguments as the framework has them, and what to say of a program's defaults.

    Args:
        values: Arguments as they are given.
        text: Of the script with the command.
        programs: What the command looks like (`command`), its `title`, `names` and `defaults` of
            arguments, `variables` that count ranks, and patterns of arguments that are `ignored`.
            A name may come with the meanings of values, null for none, and may be one in a section.
            Some are known by a `key` of their files, too, and some have further defaults `with`
            others.
    """
    lines, filled = commands_of(text)
    whole = "\n".join(map(filled, lines))
    named = [each for each in programs if re.search(each["command"], whole)]
    named += [each for each in programs if each.get("key") in values]
    program = next(iter(named), None)
    if program is None:
        return dict(values), ()
    found = {name: value for name, value in values.items() if not _is_ignored(name, program)}
    for name, meaning in program["names"].items():
        if name in found:
            [(own, meanings)] = meaning.items() if isinstance(meaning, dict) else [(meaning, {})]
            value = found.pop(name)
            if isinstance(value, str | int):
                value = meanings.get(str(value).lower(), value)
            if own not in found or not _is_off(value):  # several names may stand for one
                found[own] = value
    for variable, own in program["variables"].items():
        if (count := re.search(rf"\b{variable}=[\"']?(\d+)", whole)) is not None:
            found.setdefault(own, int(count[1]))
    defaults = _defaults(program, found)
    names = ", ".join(f"{name} {shown(value)}" for name, value in defaults.items())
    note = f"defaults of {program['title']}: {names}"
    return _in_sections({**defaults, **found}), (note,) if defaults else ()


def _defaults(program: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that a program has next to what is given."""
    defaults = dict(program["defaults"])
    for name, more in program.get("with", {}).items():
        defaults |= more if found.get(name) else {}
    left = {key for key in defaults if key in found or key in _within_sections(found)}
    if found.get("fp16"):
        left |= {"bf16", "dtype"}
    if found.get("bf16") is False:
        left |= {"dtype"}
    if not {**defaults, **found}.get("use_peft"):
        left |= {key for key in defaults if key.startswith("lora_")}
    return {key: value for key, value in defaults.items() if key not in left}


def _is_off(value: object) -> bool:
    return value is None or value is False or (value == 1 and value is not True)


def _within_sections(values: Mapping[str, Any]) -> set[str]:
    """Return the dotted names of what sections hold; names of FSDP may repeat that they are."""
    return {
        f"{section}.{str(key).removeprefix('fsdp_')}"
        for section, own in values.items()
        if isinstance(own, Mapping)
        for key in own
    }


def _is_ignored(name: str, program: Mapping[str, Any]) -> bool:
    patterns = program["ignored"]
    return name not in program["names"] and any(fnmatchcase(name, each) for each in patterns)


def _in_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with those of dotted names in their sections, where these are mappings."""
    found = {name: value for name, value in values.items() if "." not in name}
    for name, value in values.items():
        section, _, key = name.partition(".")
        own = found.get(section) or {}
        if key and isinstance(own, Mapping):
            found[section] = {key: value, **own}
    return found
