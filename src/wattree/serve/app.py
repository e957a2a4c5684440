"""The web server: routes and their handlers."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from wattree.errors import JobError, WattreeError
from wattree.files import yaml_of
from wattree.json_text import parsed_object
from wattree.kinds import wrong_kind
from wattree.report.html.templates import style
from wattree.serve.answers import Answers
from wattree.serve.guard import Guard
from wattree.serve.plans import Plans
from wattree.serve.state import START, PageState
from wattree.serve.workers import Workers
from wattree.temporary import temporary_folder

#: States that are laid side by side.
_MOST_COMPARED: Final = 4
#: Parameters of an address that are no controls: states to compare, and a framework.
_NO_STATE: Final = ("with", "to")
#: Files that one server takes.
_MOST_FILES: Final = 50
#: Requests that wait for a simulation; a further one is refused.
_MOST_WAITING: Final = 8
#: How often it is looked whether the browser still waits for an answer. [s]
_LOOK_S: Final = 0.1
_PAGE: Final = Path(__file__).with_name("page")


def new_token() -> str:
    """Return a secret for one server."""
    return secrets.token_urlsafe(24)


def make_app(token: str, hosts: frozenset[str], *, plans: Plans | None = None) -> Guard:
    """Return the application.

    Args:
        token: Secret that every request must carry.
        hosts: Values of `Host` that name the server, such as `127.0.0.1:8080`.
        plans: Searches that run in the background; new ones if None.
    """
    served = _Served(plans or Plans())
    routes = [
        Route("/", served.page),
        Route("/controls", served.controls),
        Route("/figures", served.figures),
        Route("/step", served.step),
        Route("/compare", served.compare),
        Route("/plans", served.start_plan, methods=["POST"]),
        Route("/plans/{number}", served.ask_plan, methods=["GET"]),
        Route("/plans/{number}", served.cancel_plan, methods=["DELETE"]),
        Route("/files", served.upload, methods=["POST"]),
        Route("/job.yaml", served.job_file),
        Route("/report.html", served.report),
        Route("/framework.zip", served.framework),
        Route("/page.js", served.script),
        Route("/page.css", served.style),
    ]
    handlers: Any = {WattreeError: served.mistake}
    app = Starlette(routes=routes, lifespan=served.lifespan, exception_handlers=handlers)
    return Guard(app, token, hosts)


class _Served:
    """Handlers of the addresses."""

    def __init__(self, plans: Plans) -> None:
        self._plans, self._workers = plans, Workers(1, _MOST_WAITING)
        self._answers = Answers(partial(self._workers.ask, "figures"))
        self._folder = temporary_folder("serve")

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Start a worker; at shutdown, end all of them and delete uploads."""
        del app
        self._workers.warm()
        yield
        self._plans.close()
        self._workers.close()
        self._folder.cleanup()

    async def mistake(self, request: Request, error: Exception) -> Response:
        """Answer a user's mistake with its problems, as a part of the page."""
        del request
        assert isinstance(error, WattreeError)
        return HTMLResponse(self._answers.problems(error), 422)

    async def _worked(self, request: Request, name: str, *arguments: Any) -> Any:
        """Return what a worker answers, who is stopped when the browser does not wait for it."""
        return await _while_wanted(request, partial(self._workers.ask, name, *arguments))

    async def page(self, request: Request) -> Response:
        """Answer with the whole page, in the state of its address."""
        query = _query(request)
        compared = request.query_params.getlist("with")
        state, ignored = PageState.known_of(query or START)
        return await _html(self._answers.page, state, compared[:_MOST_COMPARED], ignored)

    async def controls(self, request: Request) -> Response:
        """Answer with the controls of a state."""
        state = PageState.of(_query(request))
        return HTMLResponse(await _while_wanted(request, partial(self._answers.controls, state)))

    async def figures(self, request: Request) -> Response:
        """Answer with the figures of a state."""
        return await _html(self._answers.figures, PageState.of(_query(request)))

    async def step(self, request: Request) -> Response:
        """Answer with all about the step of a state."""
        state = PageState.of(_query(request))
        return HTMLResponse(await self._worked(request, "step", state, self._answers.files))

    async def compare(self, request: Request) -> Response:
        """Answer with states side by side."""
        queries = request.query_params.getlist("with")[:_MOST_COMPARED]
        if not queries:
            return HTMLResponse("")
        return await _html(self._answers.comparison, queries)

    async def start_plan(self, request: Request) -> Response:
        """Start a search for a state."""
        state = PageState.of(_query(request))
        await run_in_threadpool(self._answers.check, state.without_strategy())
        started = self._plans.start(state, self._answers.files)
        if started is None:
            raise JobError("plan", ["other searches are running; wait for one, or cancel it"])
        return HTMLResponse(self._answers.plan(started), 201)

    async def ask_plan(self, request: Request) -> Response:
        """Answer with the progress of a search, or its result."""
        found = self._plans.ask(request.path_params["number"])
        if found is None:
            raise JobError("plan", ["this search is over, or another server's"])
        return HTMLResponse(self._answers.plan(found))

    async def cancel_plan(self, request: Request) -> Response:
        """Cancel a search."""
        self._plans.cancel(request.path_params["number"])
        return Response(status_code=204)

    async def upload(self, request: Request) -> Response:
        """Store an uploaded model or node file; it is parsed here and never executed."""
        name = request.query_params.get("name", "file")[:80]
        body = await request.body()
        if len(self._answers.files) >= _MOST_FILES:
            raise JobError(name, [f"more than {_MOST_FILES} files; restart the server"])
        if name.endswith(".json"):
            other = wrong_kind(parsed_object(body), "a model's config.json")
        elif name.endswith((".yaml", ".yml")):
            other = wrong_kind(yaml_of(body.decode("utf-8", errors="replace"), name), "a node")
        else:
            other = "expected a model's config.json or a node's .yaml"
        if other:
            raise JobError(name, [other])
        digest = hashlib.sha256(body).hexdigest()[:8]
        folder = Path(self._folder.name) / digest
        folder.mkdir(exist_ok=True)
        path = folder / ("config.json" if name.endswith(".json") else "node.yaml")
        path.write_bytes(body)
        try:
            await self._worked(request, "check", path, name)
        except WattreeError:
            path.unlink(missing_ok=True)
            raise
        label = f"{Path(name).name} ({digest})"
        self._answers.files[label] = path
        return PlainTextResponse(label, 201)

    async def job_file(self, request: Request) -> Response:
        """Answer with the job file of a state."""
        text = PageState.of(_query(request)).yaml(self._answers.files)
        return _download(text, "job.yaml", "application/yaml")

    async def report(self, request: Request) -> Response:
        """Answer with the report of a state's step."""
        state = PageState.of(_query(request))
        text = await self._worked(request, "report", state, self._answers.files)
        return _download(text, "report.html", "text/html")

    async def framework(self, request: Request) -> Response:
        """Answer with the files by which a framework starts the job of a state."""
        state, name = PageState.of(_query(request)), request.query_params.get("to", "")
        archive = await self._worked(request, "framework", state, self._answers.files, name)
        return _download(archive, f"{name}.zip", "application/zip")

    async def script(self, request: Request) -> Response:
        """Answer with the page's script."""
        del request
        return Response((_PAGE / "page.js").read_text("utf-8"), media_type="text/javascript")

    async def style(self, request: Request) -> Response:
        """Answer with the style of all pages, then what this one adds."""
        del request
        return Response(style() + (_PAGE / "page.css").read_text("utf-8"), media_type="text/css")


def _query(request: Request) -> dict[str, str]:
    """Return the state in the address of a request."""
    return {name: value for name, value in request.query_params.items() if name not in _NO_STATE}


async def _html(function: Callable[..., str], *arguments: Any) -> Response:
    return HTMLResponse(await run_in_threadpool(function, *arguments))


async def _while_wanted(request: Request, function: Callable[..., Any]) -> Any:
    """Return the answer of a function, which can ask whether the browser still waits for it."""
    is_gone = False
    called = partial(function, is_unwanted=lambda: is_gone)
    asked = asyncio.ensure_future(run_in_threadpool(called))
    while not asked.done():
        await asyncio.wait([asked], timeout=_LOOK_S)
        is_gone = is_gone or await request.is_disconnected()
    return asked.result()


def _download(content: str | bytes, name: str, kind: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=kind, headers=headers)
