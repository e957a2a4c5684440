"""The system's Chromium, for tests of pages."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


def tables_that_scroll(page: Page) -> list[str]:
    """Return the names of tables of a page that are wider than their place."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > "
        "one.clientWidth + 1).map(one => one.getAttribute('aria-label') || one.id)"
    )
    return found
