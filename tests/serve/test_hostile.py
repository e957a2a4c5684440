"""Ten thousand requests that no page sends: none ends the server, none without token is obeyed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote, urlencode

import pytest

from wattree.serve.app import make_app
from wattree.serve.guard import MOST_BYTES
from wattree.serve.plans import Plans
from wattree.serve.state import START

HOST, TOKEN = "127.0.0.1:8080", "a-token-of-this-server"
#: Of one in so many the sender has the token: a page that went wrong, or a user who plays.
OWN: Final = 8
PATHS: Final = tuple(
    "/" + name
    for name in (
        *("", "controls", "figures", "step", "compare", "plans", "files", "job.yaml"),
        *("report.html", "page.js", "page.css", "plans/1", "plans/../..", "/", "%00", "x" * 900),
    )
)
METHODS: Final = ("GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "TRACE", "BREW")
VALUES: Final = (
    *("", "0", "-1", "1e309", "nan", "null", "[" * 500, "{{7*7}}", "${HOME}", "../../etc/passwd"),
    *("<script>", "\x00", "\x1b[2J", "٣", "²", "9" * 4400, "a" * 3000, "file.py:build", "True"),
)
LENGTHS: Final = ("0", "-5", "²", "9" * 5000, "1e3", " 7", f"{MOST_BYTES + 1}", "12")


def request(chance: random.Random, *, is_own: bool) -> tuple[dict[str, Any], bytes]:
    """Return the scope and the body of a request."""
    keys = (*START, "more", "with", "token", "name", "x")
    pairs = [(chance.choice(keys), chance.choice(VALUES)) for _ in range(chance.randint(0, 5))]
    query = chance.choice(
        (urlencode(pairs).encode(), quote(chance.choice(VALUES)).encode(), chance.randbytes(20))
    )
    headers = [(b"host", HOST.encode() if is_own or chance.random() < 0.8 else b"evil.example")]
    if is_own:
        headers.append((b"x-wattree-token", TOKEN.encode()))
    else:
        wrong = b"a/b=1; c@d=2; wattree-8080=" + TOKEN[1:].encode()
        guess = chance.choice((b"", b"guess", TOKEN[:-1].encode(), wrong, chance.randbytes(8)))
        name = chance.choice((b"x-wattree-token", b"cookie", b"authorization"))
        headers.append((name, guess))
    if chance.random() < 0.3:
        headers.append((b"content-length", chance.choice(LENGTHS).encode("utf-8")))
    if chance.random() < 0.2:
        headers.append((b"origin", chance.choice((b"null", b"http://evil.example", b"\xff"))))
    path = chance.choice(PATHS)
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": chance.choice(METHODS),
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8080),
    }
    return scope, chance.choice((b"", chance.randbytes(200), b"[" * 4000, b"a: &a [*a]"))


async def status_of(app: Any, scope: dict[str, Any], body: bytes) -> int:
    """Return the status that a request is answered with, 500 where the page tells a defect."""
    found: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])
        elif b"a defect of Wattree" in message.get("body", b""):
            found[0] = 500

    await app(scope, receive, send)
    return found[0]


@asynccontextmanager
async def living(app: Any) -> AsyncIterator[None]:
    """Begin and end an application as its server does."""
    said: asyncio.Queue[Any] = asyncio.Queue()
    heard: asyncio.Queue[Any] = asyncio.Queue()
    life = asyncio.create_task(app({"type": "lifespan"}, said.get, heard.put))
    for word in ("startup", "shutdown"):
        await said.put({"type": f"lifespan.{word}"})
        assert (await heard.get())["type"] == f"lifespan.{word}.complete"
        if word == "startup":
            yield
    await life


class NoPlans(Plans):
    """Searches that are never begun: what is tried here is who may ask for them."""

    def start(self, state: Any, files: Any) -> None:
        """Begin nothing."""
        del state, files


def test_cookies_of_other_servers_of_the_host_do_not_matter() -> None:
    """Browsers send them to every port; Python's own reader refuses some of their names."""
    cookie = b"a/b=1; wattree-8080=" + TOKEN.encode() + b"; {c@d}=2"
    scope, _ = request(random.Random(0), is_own=True)
    given = {"method": "GET", "path": "/", "query_string": b""}
    headers = [(b"host", HOST.encode()), (b"cookie", cookie)]

    async def asked() -> int:
        app = make_app(TOKEN, frozenset({HOST}), plans=NoPlans())
        async with living(app):
            return await status_of(app, {**scope, **given, "headers": headers}, b"")

    assert asyncio.run(asked()) == 200


@pytest.mark.parametrize("seed", [1])
def test_hostile_requests_are_refused(seed: int) -> None:
    """Each costs one answer: 401 and 421 without the token, 422 and its like with it."""
    chance = random.Random(seed)
    wrong: list[tuple[int, Any]] = []

    async def answered(app: Any, *, is_own: bool) -> None:
        scope, body = request(chance, is_own=is_own)
        try:
            status = await status_of(app, scope, body)
        except Exception as error:  # noqa: BLE001 - each is a defect, and all are listed
            status, scope = 599, {**scope, "error": repr(error)[:200]}
        if status >= 500 or (not is_own and status < 400):
            wrong.append((status, scope))

    async def attack() -> int:
        app = make_app(TOKEN, frozenset({HOST}), plans=NoPlans())
        async with living(app):
            for number in range(10_000):
                await answered(app, is_own=number % OWN == 0)
            own, _ = request(random.Random(0), is_own=True)
            plain = {
                "path": "/",
                "method": "GET",
                "query_string": b"",
                "headers": own["headers"][:2],
            }
            return await status_of(app, {**own, **plain}, b"")

    assert asyncio.run(attack()) == 200
    assert wrong == []
