"""What a worker process of the page runs: all that takes longer than the closed form.

It has a low priority, so that figures that follow a control do not wait for it, and ends with the
server, whatever it computes at that moment.
"""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final
from urllib.parse import urlencode

import wattree
from wattree.capture import load_model
from wattree.errors import JobError, StrategyError, WattreeError
from wattree.files import read_yaml
from wattree.frameworks import zipped_recipe
from wattree.hardware import is_path, load_node
from wattree.report.html.documents import write_step_report
from wattree.report.html.templates import rendered
from wattree.report.html.views import headline, plan_view, step_view
from wattree.report.words import job_in_words
from wattree.search import with_memory_fixes
from wattree.serve.state import PageState
from wattree.strategy import StrategyOptions, options_in_words
from wattree.temporary import temporary_folder

#: A part of the page as HTML, from its template.
fragment: Final = partial(rendered, folder=Path(__file__).with_name("page"))
#: Added to the server's, and once more by each search. [nice levels]
_NICENESS: Final = 7
#: Predictions that are remembered, for the report of a step that was just shown.
_REMEMBERED: Final = 2
#: Keys of a node that may name a file → what to do.
_COMMANDS: Final = "or give the files to `wattree simulate` and `plan`, which read them"
_NAMED_BY_NODES: Final = {
    "device": f"name a device of the catalog, {_COMMANDS}",
    "fabric": f"name a fabric of the catalog, {_COMMANDS}",
    "like": f"name a node of the catalog, {_COMMANDS}",
    "topology": "list its links under `links`",
}
Files = Mapping[str, Path]


def serve(descriptor: int) -> None:
    """Answer what comes through a pipe: the name of a function and its arguments each time.

    Answers are `progress` with its values, then `done` with the result, `mistake` with problems, or
    `defect` with what the page says of an error of ours.
    """
    os.nice(_NICENESS)
    pipe = Connection(descriptor)
    asked: SimpleQueue[tuple[str, tuple[Any, ...]]] = SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, asked), daemon=True).start()
    while True:
        name, arguments = asked.get()
        try:
            answer = "done", _FUNCTIONS[name](partial(_report, pipe), *arguments)
        except WattreeError as error:
            answer = "mistake", problems_of(error)
        except Exception as error:  # noqa: BLE001 - the page must hear of a defect, too
            answer = "defect", defect_in_words(error)
        pipe.send(answer)


def _listen(pipe: Connection, asked: SimpleQueue[Any]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            asked.put(pipe.recv())
    os._exit(0)  # the server is gone


def _report(pipe: Connection, *values: Any) -> None:
    pipe.send(("progress", values))


def problems_of(error: WattreeError) -> list[str]:
    """Return what is wrong, one line each."""
    if isinstance(error, JobError | StrategyError):
        return list(error.problems)
    lines = [line.strip() for line in str(error).splitlines()]
    return [line for line in lines if line and not line.endswith(" problems:")]


def defect_in_words(error: Exception) -> str:
    """Print all about an error of ours that is being handled, and return what the page says."""
    traceback.print_exc()
    what = f"{type(error).__name__}: {error}"
    return f"a defect of Wattree: {what}; the terminal of `wattree serve` says more"


def _step(report: Callable[..., None], state: PageState, files: Files) -> str:
    """Return everything about the step of a state."""
    del report
    prediction = _predicted(state, files)
    fits = prediction.result.memory.fits
    warning = "" if fits else "It does not fit: the figures are of an ideal device."
    assert isinstance(prediction.strategy, StrategyOptions)
    of = f"{job_in_words(prediction.result)}: {options_in_words(prediction.strategy)}"
    return fragment("report.html.j2", report=step_view(prediction), warning=warning, of=of)


def _figures(report: Callable[..., None], state: PageState, files: Files) -> dict[str, Any]:
    """Return the simulated figures of a state."""
    del report
    figures: dict[str, Any] = _predicted(state, files).result.as_json()
    return figures


def _step_report(report: Callable[..., None], state: PageState, files: Files) -> str:
    """Return the report of the step of a state."""
    del report
    with temporary_folder("report") as folder:
        path = Path(folder) / "report.html"
        write_step_report(path, _predicted(state, files))
        return path.read_text(encoding="utf-8")


def _framework(report: Callable[..., None], state: PageState, files: Files, name: str) -> bytes:
    """Return the files by which a framework starts the job of a state, zipped."""
    del report
    return zipped_recipe(state.job(files), name)


def _plan(report: Callable[..., None], state: PageState, files: Files) -> str:
    """Return the result of a search, each strategy with its address."""
    os.nice(_NICENESS)  # a step that someone opens goes first
    found = wattree.plan(state.without_strategy().job(files), progress=report)
    links = [urlencode(state.with_options(idea[0].options, files).values) for idea in found.ideas]
    view, answer = plan_view(found), headline(found)
    return fragment("plan_result.html.j2", answer=answer, plan=view, found=found, links=links)


def _check(report: Callable[..., None], path: Path, name: str) -> None:
    """Raise an error for a file that is neither a model nor a node, under its original name.

    Raises:
        JobError: It is none.
    """
    del report
    try:
        if path.suffix == ".json":
            load_model(path)
        else:
            _check_alone(path)
            load_node(path)
    except WattreeError as error:
        lines = [line.removeprefix(f"{path}: ") for line in problems_of(error)]
        raise JobError(name, lines) from error


def _check_alone(node: Path) -> None:
    """Refuse a node that needs other files, which are not uploaded with it."""
    mapping = read_yaml(node)
    problems = [
        f"{key}: {name} is a file of its own, and the page takes a node's file alone; {hint}"
        for key, hint in _NAMED_BY_NODES.items()
        if isinstance(name := mapping.get(key), str) and (key == "topology" or is_path(name))
    ]
    if problems:
        raise JobError(str(node), problems)


def _predicted(state: PageState, files: Files) -> Any:
    return _simulated(tuple(sorted(state.values.items())), tuple(sorted(files.items())))


@lru_cache(maxsize=_REMEMBERED)
def _simulated(values: tuple[tuple[str, str], ...], files: tuple[tuple[str, Path], ...]) -> Any:
    job = PageState(dict(values)).job(dict(files))
    return with_memory_fixes(job, wattree.simulate(job))


#: What the server may ask for. Each is called with a function that takes progress.
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "step": _step,
    "figures": _figures,
    "report": _step_report,
    "framework": _framework,
    "plan": _plan,
    "check": _check,
}
