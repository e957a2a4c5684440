"""None"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import LOADERS, Block, blocks


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with the hardware files that the block's page gives above it."""
    block: Block = request.getfixturevalue("block")
    for other in blocks(block.page):
        kind, _, name = other.test.partition(" ")
        if kind in LOADERS:
            (tmp_path / name).write_text(other.body, encoding="utf-8")
    return tmp_path
