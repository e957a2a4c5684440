"""What a reader is to the soak: how it is called, and good files to start from."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.soak.mutations import Pool, document_of
from tests.soak.outcome import LIMIT_S

__all__ = ["ROOT", "Reader", "files", "workplace", "written"]

ROOT = Path(__file__).resolve().parents[2]
#: Of seeds more would only be alike; every so manieth of a folder's files is taken.
_MOST_SEEDS = 40


@dataclass(frozen=True)
class Reader:
    """One reader.

    Attributes:
        name: Of it, and of the folder of its cases.
        read: Takes the path of the file.
        seeds: Returns contents that are good.
        file: Where the file lies in the workplace; others that it names lie there, too.
        is_document: Whether files are YAML or JSON, whose values can be changed one by one.
        schema: Returns the JSON schema of such a file; None where there is none.
        draw: Returns a drawn file; None where good ones are changed alone.
        varied: How often a document's values are changed so that it may well stay good.
        weight: How many inputs it gets, against others.
        limit_s: What takes longer hangs. Steps of millions of tasks are simulated, not refused. [s]
    """

    name: str
    read: Callable[[Path], object]
    seeds: Callable[[], Sequence[bytes]]
    file: str = "input.yaml"
    is_document: bool = True
    schema: Callable[[], Mapping[str, Any]] | None = None
    draw: Callable[[random.Random], bytes] | None = None
    varied: float = 0.3
    weight: float = 1.0
    limit_s: float = LIMIT_S

    @cached_property
    def contents(self) -> Sequence[bytes]:
        """The good files."""
        return self.seeds()

    @cached_property
    def pool(self) -> Pool | None:
        """Keys and values of the good files; None where they are no documents."""
        if not self.is_document:
            return None
        return Pool([document_of(content) for content in self.contents])

    @cached_property
    def json_schema(self) -> Mapping[str, Any] | None:
        """The schema of its files."""
        return self.schema() if self.schema is not None else None


def workplace(folder: Path) -> Path:
    """Return a folder with the files that job and study files name."""
    shutil.copytree(
        ROOT / "examples", folder, ignore=shutil.ignore_patterns("*.png", "__pycache__")
    )
    return folder


def files(*patterns: str, root: Path = ROOT) -> Callable[[], Sequence[bytes]]:
    """Return seeds that are files of a folder."""

    def found() -> Sequence[bytes]:
        paths = sorted(path for pattern in patterns for path in root.glob(pattern))
        step = len(paths) // _MOST_SEEDS + 1
        return [path.read_bytes() for path in paths[::step]]

    return found


def written(*texts: str) -> Callable[[], Sequence[bytes]]:
    """Return seeds that are written out."""
    return lambda: [text.encode() for text in texts]
