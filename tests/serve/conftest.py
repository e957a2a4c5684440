"""A server, and its page in a browser."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.served import LIMIT_S, Server, started_server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Start a server on a free port, and end it as Ctrl-C does."""
    made = started_server()
    yield made
    made.process.send_signal(signal.SIGINT)
    assert made.process.wait(timeout=LIMIT_S) in {0, -signal.SIGINT, 130}
    assert made.process.stderr is not None
    made.process.stderr.close()


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    """Return the page; whatever goes wrong in it fails the test."""
    wrong: list[str] = []
    found = browser.new_page(viewport={"width": 1360, "height": 900})
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on("request", lambda each: each.url.startswith(server.base) or wrong.append(each.url))
    found.goto(server.address)
    yield found
    found.close()
    assert not [each for each in wrong if not each.startswith("data:")]
