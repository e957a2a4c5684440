"""The system's Chromium, for tests of pages."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

#: How long a page may take for anything: only one that hangs takes longer, on any machine. [ms]
LIMIT_MS: Final = 600_000
#: Pages share a process, which has compiled the scripts that they have in common: two seconds each.
IN_ONE_PROCESS: Final = ("--process-per-site", "--renderer-process-limit=1")


class Pages:
    """Opens pages one after the other; the process of the first stays for those that follow."""

    def __init__(self, browser: Browser) -> None:
        self._context = browser.new_context()
        self._context.new_page()

    def new_page(self, *, viewport: Any = None, **media: Any) -> Page:
        """Return a new page.

        Args:
            viewport: Its `width` and `height`; 1280 and 720 if None. [CSS pixels]
            media: What `emulate_media` takes.
        """
        page = self._context.new_page()
        page.set_default_timeout(LIMIT_MS)
        if viewport is not None:
            page.set_viewport_size(viewport)
        if media:
            page.emulate_media(**media)
        return page


def tables_that_scroll(page: Page) -> list[str]:
    """Return the names of tables of a page that are wider than their place."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > "
        "one.clientWidth + 1).map(one => one.getAttribute('aria-label') || one.id)"
    )
    return found


#: Of axe-core's rules, those that depend on colors; no other one can differ in the dark.
_OF_COLORS: Final = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}


def broken_rules(page: Page) -> list[str]:
    """Return what breaks axe-core's rules: all of them in light, those of colors in dark, too."""
    from axe_playwright_python.sync_playwright import Axe

    shown: dict[str, Any] = {"resultTypes": ["violations"]}
    found = []
    for scheme, options in (("light", shown), ("dark", {**shown, "runOnly": _OF_COLORS})):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        broken = Axe().run(page, options=options).response["violations"]
        found += [f"{scheme}: {rule['id']}: {rule['nodes'][0]['html'][:200]}" for rule in broken]
    return found
