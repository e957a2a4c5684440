"""The system's Chromium, for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any, Final

import pytest

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return the browser, driven from here.

    Not for longer than a module: its loop is one of asyncio, which lets no other run in a process.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()
