"""`wattree serve`: a page to plan with."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wattree.cli.output import announce_waits, tell
from wattree.cli.request import asked, choice, request_command
from wattree.errors import OutputError, check_packages

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOCAL: Final = ("127.0.0.1", "localhost")
_PORT: Final = 8421


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest:
    """Arguments and options of `wattree serve`."""

    host: str = asked(
        "ADDRESS",
        "Address to listen on; only the default is private to this host.",
        value=_LOCAL[0],
        shown=True,
    )
    port: int = asked(
        "N", "Port to listen on; 0 takes a free one.", value=_PORT, shown=True, least=0, most=65535
    )
    browser: bool = choice("Open the page in a browser.", "--browser/--no-browser", value=True)


@request_command
def serve(request: ServeRequest) -> None:
    """Serve a web page to plan with.

    Anyone who has the address, which contains a token, can use the page. It needs no network.
    Ctrl-C ends it.

    Example: wattree serve
    """
    packages = ("starlette", "uvicorn", "jinja2", "matplotlib")
    check_packages(*packages, needed_for="wattree serve", extra="serve")
    listening = _listening(request.host, request.port)
    port = listening.getsockname()[1]
    import uvicorn

    from wattree.serve.app import make_app, new_token

    announce_waits()
    token = new_token()
    app = make_app(token, frozenset(_hosts({request.host, *_LOCAL}, port)))
    address = f"http://{request.host}:{port}/?token={token}"
    tell(f"Open {address}")
    tell("Ctrl-C ends it.")
    if request.browser:
        import webbrowser

        webbrowser.open(address)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listening])


def _hosts(names: Iterable[str], port: int) -> Iterable[str]:
    return (f"{name}:{port}" for name in names)


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        OutputError: The port is taken, or the address is not this machine's.
    """
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen()
    except (OSError, OverflowError) as error:
        made.close()
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        hint = "is in use; give another --port, or 0 for a free one" if taken else str(error)
        raise OutputError(f"--port {port} of {host}: {hint}") from error
    return made
