"""What tests of capture share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def known_models(root: Path) -> Path:
    """Return the configurations and modules whose counts other software has made."""
    return root / "validation" / "models"
