"""A running `wattree serve`, for tests."""

from __future__ import annotations

import itertools
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import uvicorn

from wattree.errors import SearchCancelledError
from wattree.serve.app import make_app
from wattree.serve.plans import Plans

SMALL = {"model": "gpt2", "node": "dgx-a100", "sequence_length": "1024", "global_batch": "64"}
NONE: dict[str, Path] = {}
#: How long an answer may take: only one that never comes takes longer, on any machine. [s]
LIMIT_S = 600


class Server:
    """A running `wattree serve`.

    Attributes:
        address: With its token.
        base: Without.
    """

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = process, address
        self.base = address.partition("/?")[0]
        self.token = parse_qs(urlsplit(address).query)["token"][0]
        self.port = int(urlsplit(address).port or 0)

    def ask(
        self, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, str]:
        """Return status and text of an answer."""
        named = {
            "X-Wattree-Token": self.token,
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        request = urllib.request.Request(self.base + path, data=body, method=method, headers=named)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


def started_server() -> Server:
    """Return a new server on a free port."""
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
    return Server(process, address)


def endless_search(
    name: str, *arguments: object, is_unwanted: Callable[[], bool], report: Callable[..., None]
) -> str:
    """Search, with progress, until nobody wants it."""
    del name, arguments
    for done in itertools.count(1):
        if is_unwanted():
            raise SearchCancelledError("cancelled")
        report("screening", done % 100, 100)
        time.sleep(0.01)
    raise AssertionError


@contextmanager
def endless_server() -> Iterator[str]:
    """Serve in a thread, where no search ends of its own, and yield the address."""
    listening = socket.create_server(("127.0.0.1", 0))
    host, token = f"127.0.0.1:{listening.getsockname()[1]}", secrets.token_urlsafe(9)
    app = make_app(token, frozenset({host}), plans=Plans(search=endless_search))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
    running = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    running.start()
    try:
        yield f"http://{host}/?token={token}"
    finally:
        server.should_exit = True
        running.join()
