"""What tests of searches share."""

from __future__ import annotations

import sys

import pytest

import wattree.search.plan  # noqa: F401 - a function has its name in the package
from tests.search.jobs import FEWEST


@pytest.fixture
def small_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search a small part of the space unless a test names another."""
    monkeypatch.setattr(sys.modules["wattree.search.plan"], "Limits", lambda: FEWEST)
