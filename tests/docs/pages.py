"""The pages of the documentation, their blocks, and the scripts that remake them."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from wattree.hardware import load as hardware

__all__ = ["BLOCK", "FIGURES", "LOADERS", "ROOT", "SESSIONS", "Block", "blocks", "script"]

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"^(?:<!-- test: (?P<test>[^\n]+?) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)

LOADERS: dict[str, Callable[[Path], object]] = {
    "device": hardware.load_device,
    "node": hardware.load_node,
    "fabric": hardware.load_fabric,
    "site": hardware.load_site,
}


class Block(NamedTuple):
    """A fenced block that says how it is tested."""

    page: Path
    line: int
    test: str
    body: str
    following: str  # body of the next block if that is text, else empty


def blocks(page: Path) -> Iterator[Block]:
    """Yield the tested blocks of a page."""
    text = page.read_text(encoding="utf-8")
    found = list(BLOCK.finditer(text))
    for index, match in enumerate(found):
        after = found[index + 1] if index + 1 < len(found) else None
        following = after["body"] if after is not None and after["language"] == "text" else ""
        if match["test"]:
            line = text.count("\n", 0, match.start()) + 1
            yield Block(page, line, match["test"], match["body"], following)


def script(name: str) -> ModuleType:
    """Return a script of `docs/`, which is no part of a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


SESSIONS = script("sessions")
FIGURES = script("figures")
