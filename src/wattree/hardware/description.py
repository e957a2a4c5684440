"""What a hardware file holds, before it is read: to be changed, and read as the file would be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A device, node, fabric or site as its file writes it.

    Attributes:
        path: The file, for messages and as where relative paths in it start.
        mapping: What it holds.
    """

    path: Path
    mapping: Mapping[str, Any]
