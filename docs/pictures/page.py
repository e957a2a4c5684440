"""Draw docs/pictures/page.png and step.png: the page of `wattree serve` in a browser."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).with_name("page.png")
STEP = PICTURE.with_name("step.png")


def main() -> None:
    """Serve, press Plan, and open the step."""
    server = subprocess.Popen(
        [sys.executable, "-m", "wattree", "serve", "--no-browser", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    address = ""
    while not address:
        found = re.search(r"http://\S+", server.stderr.readline())
        address = found.group() if found else ""
    try:
        with sync_playwright() as driver:
            path = shutil.which("chromium") or shutil.which("chromium-browser")
            browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1360, "height": 900})
            page.goto(address)
            page.click("#plan")
            page.wait_for_selector("[data-over=yes]")
            page.screenshot(path=PICTURE)
            page.click("#plans [data-use] >> nth=1")
            page.click("#open")
            page.wait_for_selector("#step svg")
            page.wait_for_timeout(1000)  # of smooth scrolling
            page.screenshot(path=STEP)
            browser.close()
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)


if __name__ == "__main__":
    main()
