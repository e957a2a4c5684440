"""The `model:` of a job that names a Python function: which, and with what.

Nothing is imported or run here; `wattree.capture` does that when the model is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from wattree.errors import ModelError
from wattree.job.inputs import Input

_FILE: Final = re.compile(r"(?P<file>[^\0]+\.py):(?P<function>[A-Za-z_]\w*)")
_PACKAGE: Final = re.compile(
    r"(?P<package>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)"
)
#: Ends of file names that look like `package.module` and are data, which never runs.
_DATA: Final = (".json", ".yaml", ".yml", ".toml", ".csv", ".et", ".txt")
_EXPECTED: Final = "expected file.py:build or package.module:build"


def working_folder() -> Path:
    """Return the current folder; one that was removed has no name."""
    try:
        return Path.cwd()
    except OSError:
        return Path()


def seen_from(start: Path, path: Path) -> Path:
    """Return a path that was read in the folder `start`, as it is seen from the current one."""
    return path if start == working_folder() else start / path


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSource:
    """A function that builds a PyTorch module. Using it runs the file it is in.

    Attributes:
        file: Python file; None where a package is named.
        package: Dotted name of an importable module; None where a file is named.
        function: Its function that returns the `nn.Module`.
        arguments: Keyword arguments of the function.
        inputs: Tensors and constants the module takes, by position or by name; None: the function
            `example_inputs` of the same file makes them.
        loss: `auto`: backward starts from the module's result if that is a scalar, or from its
            entry `loss`; `none`: always from the sum of all results.
        start: The current folder when it was named, where a relative `file` starts.
    """

    file: Path | None = None
    package: str | None = None
    function: str = "build"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[Input, ...] | Mapping[str, Input] | None = None
    loss: Literal["auto", "none"] = "auto"
    start: Path = field(default_factory=working_folder, compare=False, repr=False)

    @property
    def path(self) -> Path | None:
        """The file as it is seen from the current folder."""
        return None if self.file is None else seen_from(self.start, self.file)

    @property
    def name(self) -> str:
        """As it was named."""
        return f"{self.file or self.package}:{self.function}"


def names_module(text: str) -> bool:
    """Return whether a model's name is that of a Python function, and using it runs code."""
    if _FILE.fullmatch(text):
        return True
    match = _PACKAGE.fullmatch(text)
    return match is not None and not match["package"].lower().endswith(_DATA)


def module_source(text: str, folder: Path = Path(), **rest: Any) -> ModuleSource:
    """Return the function that `file.py:build` or `package.module:build` names.

    Args:
        text: As the user wrote it.
        folder: Where a relative path starts.
        rest: Other fields of the source.

    Raises:
        ModelError: It names no Python function.
    """
    if not names_module(text):
        raise ModelError(f"found '{text}', {_EXPECTED}")
    match = _FILE.fullmatch(text)
    if match is not None:
        return ModuleSource(file=folder / match["file"], function=match["function"], **rest)
    match = _PACKAGE.fullmatch(text)
    assert match is not None
    return ModuleSource(package=match["package"], function=match["function"], **rest)
