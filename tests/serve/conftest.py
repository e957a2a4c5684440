"""A server, and its page in a browser."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.served import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Start a server on a free port, and end it as Ctrl-C does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "wattree", "serve", "--no-browser", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    assert process.stderr is not None
    address = ""
    while not address:
        line = process.stderr.readline()
        assert line, "the server ended before it served"
        found = re.search(r"http://\S+", line)
        address = found.group() if found else ""
    made = Server(process, address)
    yield made
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) in {0, -signal.SIGINT, 130}
    process.stderr.close()


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    """Return the page; whatever goes wrong in it fails the test."""
    wrong: list[str] = []
    found = browser.new_page(viewport={"width": 1360, "height": 900})
    found.set_default_timeout(120_000)
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on("request", lambda each: each.url.startswith(server.base) or wrong.append(each.url))
    found.goto(server.address)
    yield found
    found.close()
    assert not [each for each in wrong if not each.startswith("data:")]
