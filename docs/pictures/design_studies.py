"""Draw the pictures of docs/design-studies.md: plots of studies that ship, as pages save them.

    .venv/bin/python docs/pictures/design_studies.py [--on WHERE] [--stores DIR]

Runs the studies first (minutes); with DIR, finished points are stored there and taken from there.
Needs Chromium, which saves the plots.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from wattree.design import load_study, run_study
from wattree.report.design.page import write_design_page

HERE = Path(__file__).parent
STUDIES = HERE.parents[1] / "examples" / "design"
#: Picture → study, plot of its page.
PICTURES = {
    "design-worth.svg": ("transformer-1t-expansion.yaml", "worth-0"),
    "design-heat.svg": ("transformer-1t-sweep.yaml", "heat"),
}


def draw(name: str, *, on: str, stores: Path) -> None:
    """Run the study of a picture and save the plot."""
    file, plot = PICTURES[name]
    results = run_study(load_study(STUDIES / file), on=on, store=stores / f"{file}.sqlite")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path = Path(folder) / "report.html"
        write_design_page(results, path)
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        page.locator(f"#{plot}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#{plot} .canvas .main-svg")
        page.wait_for_timeout(500)
        with page.expect_download() as download:
            page.click(f"#{plot} [data-save=svg]")
        download.value.save_as(HERE / name)
        browser.close()


def main() -> None:
    """Draw all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", default="processes", help="where points are evaluated")
    parser.add_argument("--stores", type=Path, help="folder of finished points")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in PICTURES:
            draw(name, on=given.on, stores=given.stores or Path(folder))
            print(name)


if __name__ == "__main__":
    main()
