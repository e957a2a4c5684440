"""The notebooks of the examples run as they are, and show what they show."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import script

NOTEBOOKS = script("notebooks")


@pytest.mark.parametrize("path", NOTEBOOKS.notebooks(), ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_was_saved_with(path: Path) -> None:
    """Text to the letter; of pages that results show, that there is one."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    saved = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]

    found = NOTEBOOKS.outputs_of(notebook)

    assert _texts(found) == _texts(saved)
    assert sum("text/html" in each.get("data", {}) for cell in found for each in cell) >= 3


def _texts(cells: list[list[dict[str, Any]]]) -> list[list[list[str]]]:
    return [[each.get("text") or each["data"]["text/plain"] for each in cell] for cell in cells]
