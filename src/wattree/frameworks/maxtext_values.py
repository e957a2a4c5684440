"""MaxText's settings in a file: YAML on its base, or `key=value` in the commands of a script."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from wattree.files import is_file, read_yaml
from wattree.frameworks.named_files import file_next_to
from wattree.frameworks.shell_flags import script_text, shell_words
from wattree.frameworks.trainer_arguments import scalar

#: What every configuration starts from.
BASE: Final = "base.yml"
#: `key=value` of a command.
_OVERRIDE: Final = re.compile(r"[a-z][a-z0-9_]*=(?!=).*", re.DOTALL)
_YAML: Final = (".yml", ".yaml")
#: How many files may build on each other.
_MOST_FILES: Final = 8


def maxtext_values(path: Path) -> Mapping[str, Any]:
    """Return the settings that a file has over base.yml; see `maxtext_sources`."""
    return maxtext_sources(path)[0]


def maxtext_sources(path: Path) -> tuple[dict[str, Any], tuple[Path, ...]]:
    """Return the settings that a file has over base.yml, and the other files that they are from.

    A base that is not found stays as `base_config`.

    Args:
        path: YAML, or a script, with those that it calls.
    """
    files: list[Path] = []
    found = _from_yaml(path, files) if path.suffix in _YAML else _from_script(path, files)
    return found, tuple(files)


def _from_yaml(path: Path, files: list[Path]) -> dict[str, Any]:
    values = dict(read_yaml(path))
    base = path.parent / str(values.get("base_config", BASE))
    if base.name == BASE or not is_file(base) or len(files) == _MOST_FILES:
        return values
    del values["base_config"]
    files.append(base)
    return {**_from_yaml(base, files), **values}


def _from_script(path: Path, files: list[Path]) -> dict[str, Any]:
    """Return what commands override, over the YAML that they start from."""
    found: dict[str, Any] = {}
    base: dict[str, Any] = {}
    for word in itertools.chain.from_iterable(_with_inner(shell_words(script_text(path)))):
        if _OVERRIDE.fullmatch(word):
            key, value = word.split("=", 1)
            found[key] = scalar(value)
        elif word.endswith(_YAML) and Path(word).name != BASE:
            if not is_file(file := file_next_to(path, word)):
                base["base_config"] = word
            elif len(files) < _MOST_FILES:
                files.append(file)
                base |= _from_yaml(file, files)
    return {**base, **found}


def _with_inner(commands: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yield commands with those that stand in a word of another, such as `--command="…"`."""
    for words in commands:
        yield words
        for word in words:
            if not _OVERRIDE.fullmatch(word) and len(inner := word.split()) > 1:
                yield inner
