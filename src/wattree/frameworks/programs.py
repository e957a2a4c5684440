"""Programs that start a framework with names and defaults of their own, and what these mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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
            arguments, `variables` that count ranks, and arguments that are `ignored`. A name may
            come with the meanings of values, null for none. Some are known by a `key` of their
            files, too.
    """
    lines, filled = commands_of(text)
    whole = "\n".join(map(filled, lines))
    named = [each for each in programs if re.search(each["command"], whole)]
    named += [each for each in programs if each.get("key") in values]
    program = next(iter(named), None)
    if program is None:
        return dict(values), ()
    found = {name: value for name, value in values.items() if name not in program["ignored"]}
    for name, meaning in program["names"].items():
        if name in found:
            [(own, meanings)] = meaning.items() if isinstance(meaning, dict) else [(meaning, {})]
            value = found.pop(name)
            if isinstance(value, str | int):
                value = meanings.get(str(value).lower(), value)
            found[own] = value
    for variable, own in program["variables"].items():
        if (count := re.search(rf"\b{variable}=[\"']?(\d+)", whole)) is not None:
            found.setdefault(own, int(count[1]))
    defaults = {key: each for key, each in program["defaults"].items() if key not in found}
    if found.get("fp16"):
        defaults.pop("bf16", None)
    if not {**defaults, **found}.get("use_peft"):
        defaults = {key: each for key, each in defaults.items() if not key.startswith("lora_")}
    names = ", ".join(f"{name} {shown(value)}" for name, value in defaults.items())
    note = f"defaults of {program['title']}: {names}"
    return {**defaults, **found}, (note,) if defaults else ()
