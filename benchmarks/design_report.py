"""The page of a study: how large, and how soon and how quickly it can be used in Chromium.

Pages are of made-up results (two workloads, six axes). Each is opened from disk in a fresh context
of the system's Chromium without a window; times are those of the page's own `performance` marks,
from the start of navigation, median over loads.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.frame import Figure, Options, Section
from tests.design.synthetic import large_results
from wattree.report.design.page import design_page

POINTS = 10_000
LOADS = 5
_MOST_BYTES, _MOST_S = 10e6, 2.0
_PLOTS = ("worth-0", "scatter", "heat", "time-bars", "energy-bars", "tornado")


def section(_: Options) -> Section | None:
    """Return the section of the table; None where there is no Chromium or nothing to drive it."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    results = large_results(POINTS)
    began = time.perf_counter()
    text = design_page(results).encode()
    made_s = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path = Path(folder) / "report.html"
        path.write_bytes(text)
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        taken = [_load(browser, path.as_uri()) for _ in range(LOADS)]
        browser.close()
    middle = {name: statistics.median(one[name] for one in taken) for name in taken[0]}
    ready = middle.pop("interactive")
    size = len(text)
    lines = (
        Figure(
            f"size at {POINTS:,} points", "≤ 10 MB", f"{size / 1e6:.2f} MB", size <= _MOST_BYTES
        ),
        Figure("interactive, from disk", "≤ 2 s", f"{ready:.2f} s", ready <= _MOST_S),
        Figure("written in", "", f"{made_s:.2f} s"),
        *(Figure(name, "", f"{1e3 * value:.0f} ms") for name, value in middle.items()),
    )
    return Section(title="Page of a study", figures=lines)


def _load(browser: Any, address: str) -> dict[str, float]:
    """Open the page once and use it. [s]"""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    page.wait_for_selector("html[data-ready=yes]")
    mark = "performance.getEntriesByName('wattree:interactive')[0].startTime"
    found = {"interactive": page.evaluate(mark) / 1e3}
    for name in _PLOTS:
        page.locator(f"#{name}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#{name} .canvas .main-svg")
        found[f"first drawing of {name}"] = _measured(page, name)
    page.locator("#scatter").scroll_into_view_if_needed()
    found["scatter after selecting the front"] = _after(page, lambda: page.click("#select-front"))
    page.locator("#filters summary").click()
    first = page.locator("#filter-axes fieldset input").first
    found["scatter after a filter"] = _after(page, first.uncheck)
    page.close()
    return found


def _measured(page: Any, name: str) -> float:
    entries = f"performance.getEntriesByName('wattree:{name}')"
    page.wait_for_function(f"{entries}.length > 0")
    return float(page.evaluate(f"{entries}.at(-1).duration")) / 1e3


def _after(page: Any, use: Callable[[], None]) -> float:
    """Return how long the scatter takes to draw after a control was used. [s]"""
    entries = "performance.getEntriesByName('wattree:scatter')"
    before = page.evaluate(f"{entries}.length")
    use()
    page.locator("#scatter").scroll_into_view_if_needed()
    page.wait_for_function(f"{entries}.length > {before}")
    return float(page.evaluate(f"{entries}.at(-1).duration")) / 1e3
