"""Content of a hardware file before it is read; it can be changed, then read like a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A device, node, fabric or site as written in its file.

    Attributes:
        path: The file, for messages and as where relative paths in it start.
    """

    path: Path
    mapping: Mapping[str, Any]
