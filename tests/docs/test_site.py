"""The site of the documentation builds without a warning, and its search finds the page."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser import needs_chromium

ROOT = Path(__file__).resolve().parents[2]
#: What a stranger types → the page that answers, which must be one of the first three.
QUESTIONS = {
    "zero bubble": "Strategies",
    "power limit": "Device power",
    "memory does not fit": "Results",
    "my own model": "Your own PyTorch module",
    "carbon": "Energy accounts",
}


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the pages below `source` as `make docs` does."""
    strict = ["--quiet", "--fresh-env", "--fail-on-warning"]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *strict, "-c", str(ROOT / "docs"), str(source), str(site)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder


def test_the_site_has_every_public_name(site: Path) -> None:
    """A name without a description is no interface."""
    import wattree

    page = (site / "docs" / "reference" / "python.html").read_text(encoding="utf-8")
    names = set(wattree.__all__) - {"__version__"}

    assert {name for name in names if f'id="wattree.{name}"' not in page} == set()


def test_the_site_has_the_help_of_every_command(site: Path) -> None:
    """A command that the reference leaves out does not exist for its reader."""
    from wattree.cli.main import _COMMANDS

    page = (site / "docs" / "reference" / "commands.html").read_text(encoding="utf-8")

    assert {name for name in _COMMANDS if f"Usage: wattree {name}" not in page} == set()


def test_the_site_has_the_schemas(site: Path) -> None:
    """Editors read them from there."""
    for kind in ("job", "study"):
        schema = json.loads((site / "schemas" / f"{kind}.json").read_text(encoding="utf-8"))
        page = (site / "docs" / "reference" / f"schema-{kind}.html").read_text(encoding="utf-8")

        assert {key for key in schema["properties"] if f">{key}</span>" not in page} == set()


#: What a page may hold → what the build says of it.
BROKEN = {
    "[a](gone.md)": "cross-reference target not found: 'gone.md'",
    "[b](#gone)": "cross-reference target not found: 'gone'",
    "[c](../src/gone.py)": "cross-reference target not found: '../src/gone.py'",
    "```{toctree}\ngone\n```": "nonexisting document 'docs/gone'",
}


def test_broken_links_and_pages_without_a_way_to_them_fail_the_build(tmp_path: Path) -> None:
    """Strictness that is not tried may be off."""
    (tmp_path / "docs").mkdir()
    text = "\n\n".join(["# Title", *BROKEN])
    (tmp_path / "docs" / "index.md").write_text(f"{text}\n", encoding="utf-8")
    (tmp_path / "docs" / "orphan.md").write_text("# Orphan\n", encoding="utf-8")

    done = build(tmp_path, tmp_path / "site")

    warnings = [*BROKEN.values(), "document isn't included in any toctree"]
    assert [warning for warning in warnings if warning not in done.stderr] == []
    assert done.returncode != 0


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Serve the site, as `make docs-serve` does."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *line: object) -> None:
            del line

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@needs_chromium
def test_the_search_finds_the_page_that_answers(browser: Any, address: str, site: Path) -> None:
    """A page that is not found is not read; from disk the search of Sphinx answers."""
    page = browser.new_page()
    missed = {}
    for question, answer in QUESTIONS.items():
        page.goto(f"{address}/search.html?q={quote(question)}")
        titles = page.locator(".pagefind-ui__result-inner > .pagefind-ui__result-title")
        titles.first.wait_for()
        page.wait_for_function("!document.querySelector('.pagefind-ui__loading')")
        first = [title.inner_text().strip() for title in titles.all()[:3]]
        if answer not in first:
            missed[question] = first
    page.goto(f"{(site / 'search.html').as_uri()}?q=carbon")
    page.locator("#search-results li").first.wait_for()
    page.close()

    assert missed == {}
