"""What tests of hardware files share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hardware.user_files import DEVICE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder that holds the user's card."""
    (tmp_path / "my-card.yaml").write_text(DEVICE)
    return tmp_path
