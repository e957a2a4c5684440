"""Access control: requests need the server's token and must come from its page.

A page of another site in the same browser can send requests to this machine. It has no token, and
the browser says where it comes from; a name of another site that leads here is seen in `Host`.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from starlette.datastructures import Headers, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: Largest request. [B]
MOST_BYTES: Final = 1 << 20
_TOO_LARGE: Final = f"at most {MOST_BYTES} B are taken\n"
#: As numbers that are small enough to be read are written.
_LENGTH: Final = re.compile("[0-9]{1,12}")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Guard:
    """Middleware: token, host, origin, size.

    Args:
        hosts: Values of `Host` that name it.
    """

    def __init__(self, app: Any, token: str, hosts: frozenset[str]) -> None:
        self._app, self._token, self._hosts = app, token, hosts
        self._cookie = f"wattree-{min(hosts).rpartition(':')[2]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or reject it with the reason."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                extra = [(k.lower().encode(), v.encode()) for k, v in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        await self._app(scope, _limited(receive), with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the response to a rejected request."""
        if headers.get("host", "") not in self._hosts:
            return PlainTextResponse("unknown host\n", 421)
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] not in self._hosts:
            return PlainTextResponse("this request comes from another site\n", 403)
        length = headers.get("content-length", "0")
        if not _LENGTH.fullmatch(length) or int(length) > MOST_BYTES:
            return PlainTextResponse(_TOO_LARGE, 413)
        given = QueryParams(scope["query_string"]).get("token", "")
        if scope["path"] == "/" and given and self._fits(given):
            answer = RedirectResponse("/", 303, headers=_HEADERS)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            return answer
        cookie = cookie_parser(headers.get("cookie", "")).get(self._cookie)
        if not self._fits(cookie or headers.get("x-wattree-token", "")):
            words = "open the address that 'wattree serve' printed: it has the token\n"
            return PlainTextResponse(words, 401)
        return None

    def _fits(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def _limited(receive: Receive) -> Receive:
    """Return a receiver of bodies up to the size limit, which not every header states.

    Raises:
        HTTPException: A body is larger.
    """
    taken = 0

    async def limited() -> MutableMapping[str, Any]:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > MOST_BYTES:
            raise HTTPException(413, _TOO_LARGE)
        return message

    return limited
