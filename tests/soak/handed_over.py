"""What other programs made, and what the page is asked: recipes, traces of PyTorch, results."""

from __future__ import annotations

import asyncio
import atexit
import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

from tests.frameworks.test_import_foundry import FOUNDRY
from tests.frameworks.test_import_torchtune import RECIPE
from tests.frameworks.test_round_trip import DRAWN, random_jobs
from tests.kineto.traces import device_rank, write
from tests.serve.test_hostile import HOST, METHODS, PATHS, TOKEN, VALUES, NoPlans, living, status_of
from wattree.errors import WattreeError
from wattree.job import Job, job_from_mapping

__all__ = [
    "drawn_request",
    "foundry_seeds",
    "own_runs",
    "own_runs_seeds",
    "recipe",
    "recipe_seeds",
    "request",
    "requests",
    "result",
    "result_seeds",
    "traced",
    "traced_seeds",
]

_JOB: Mapping[str, Any] = {
    "model": {"transformer": {"layers": 2, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1000}},
    "data": {"sequence_length": 256, "global_batch": 16},
    "cluster": {"node": "dgx-a100"},
    "place": {"devices": [0, 1]},
    "strategy": {"dp": 2},
}
#: Recipes of each framework that inputs start from.
_RECIPES = 4
#: Requests to one server; of that many uploads it takes all.
_REQUESTS = 40
#: The server that runs, if one does.
_servers: list[_Running] = []


# -------------------------------------------------------------------------------- recipes


def recipe(name: str) -> Callable[[Path], object]:
    """Return a reader of a framework's configuration, as `wattree import` reads it."""

    def read(path: Path) -> object:
        from wattree.frameworks import Given, import_recipe

        drawn = DRAWN.get(name)  # none of one whose files are only read
        for file, text in _recipes(name)[0].items() if drawn else ():
            if file != path.name:
                path.with_name(file).write_text(text, encoding="utf-8")
        bare = path.name == "accelerate.yaml"  # without the command that starts a script
        given = Given(micro_batch=1 if bare else None)
        if bare or (drawn is not None and drawn.given):
            given = replace(given, model="llama-3.1-8b", sequence_length=2048)
        found = import_recipe(path, name, node="dgx-b200", given=given)
        found.text()
        return job_from_mapping(found.job, "imported")

    return read


@cache
def _recipes(name: str) -> Sequence[Mapping[str, str]]:
    """Return files of exported jobs, by name."""
    from wattree.frameworks import FRAMEWORKS
    from wattree.frameworks.concrete import concrete_job
    from wattree.frameworks.export import recipe_files

    found: list[Mapping[str, str]] = []
    for job in random_jobs(name, seed=19):
        try:
            files, _ = recipe_files(FRAMEWORKS[name], concrete_job(job))
        except WattreeError:
            continue
        found.append(files)
        if len(found) == _RECIPES:
            return found
    raise AssertionError(f"{name} expresses {len(found)} of the drawn jobs")


def recipe_seeds(name: str, file: str) -> Callable[[], Sequence[bytes]]:
    """Return a file of exported jobs, those that have it."""
    return lambda: [files[file].encode() for files in _recipes(name) if file in files]


def foundry_seeds() -> Sequence[bytes]:
    """Return configurations of llm-foundry."""
    usual = {
        "name": "meta-llama/Llama-3.1-8B",
        "more": "pretrained: false",
        "optimizer": "adamw",
        "end": "seed: 1",
    }
    return [FOUNDRY.format(**usual, sharding=each).encode() for each in ("FULL_SHARD", "NO_SHARD")]


def torchtune_seeds() -> Sequence[bytes]:
    """Return recipes of torchtune."""
    models = ("llama3_1.llama3_1_8b", "qwen2_5.qwen2_5_7b_base")
    return [RECIPE.format(model=each, end="fsdp_cpu_offload: true").encode() for each in models]


# ------------------------------------------------------------------- traces and own runs


@cache
def _job() -> Job:
    return job_from_mapping(_JOB)


@cache
def _predicted() -> Any:
    from wattree.learn.predicted_step import predicted_step

    return predicted_step(_job())


def traced(path: Path) -> None:
    """Explain a small job by a trace of PyTorch's profiler and that of another rank."""
    from rich.console import Console

    from wattree.kineto.ranks import read_ranks
    from wattree.learn.explain import explain
    from wattree.report.explained_text import show_explanation
    from wattree.report.json_output import json_text

    partner = write(path.with_name("partner.json"), device_rank(late_us=50.0), rank=1)
    found = explain(_job(), read_ranks([path, partner]), _predicted())
    show_explanation(found, Console(file=io.StringIO(), width=100))
    json_text(found.as_json())


def traced_seeds() -> Sequence[bytes]:
    """Return traces of rank 0 of two, one of a clock that is ahead."""
    with TemporaryDirectory() as made:
        path = Path(made) / "rank.json"
        heads: Sequence[dict[str, Any]] = ({}, {"schemaVersion": 1, "displayTimeUnit": "ms"})
        return [
            write(path, device_rank(ahead_us=5e3 * at), **head).read_bytes()
            for at, head in enumerate(heads)
        ]


def own_runs(path: Path) -> object:
    """Read a list of measured runs, as `wattree calibrate` does."""
    from wattree.job.written import yaml_text
    from wattree.learn.own_steps import own_steps

    path.with_name("own.yaml").write_text(yaml_text(dict(_JOB)), encoding="utf-8")
    return own_steps(path)


def own_runs_seeds() -> Sequence[bytes]:
    """Return lists of runs by their step times and by a file."""
    return [
        b"runs:\n- {job: own.yaml, step_time: 0.5 s}\n- {job: own.yaml, step_time: 500 ms}\n",
        b"runs:\n- job: own.yaml\n  step_time: 1.5 min\n",
    ]


# -------------------------------------------------------------------------------- results


def result(path: Path) -> None:
    """Compare a result that was written as JSON with a whole one."""
    from rich.console import Console

    from wattree.report.compare_text import show_comparison
    from wattree.report.json_output import json_text
    from wattree.report.notebook import html_of, line_of
    from wattree.search.compared import compare

    other = path.with_name("other.json")
    other.write_bytes(result_seeds()[0])
    found = compare([path, other])
    show_comparison(found, Console(file=io.StringIO(), width=100))
    json_text(found.as_json())
    line_of(found)
    html_of(found)


@cache
def result_seeds() -> Sequence[bytes]:
    """Return results of `simulate` and `plan`."""
    from wattree.predict import simulate
    from wattree.report.json_output import json_text
    from wattree.search import plan

    simulated = simulate(_job()).result.as_json()
    whole = {key: value for key, value in _JOB.items() if key not in {"place", "strategy"}}
    planned = plan(job_from_mapping(whole)).as_json()
    planned["ranked"] = planned["ranked"][:2]
    return [json_text(each).encode() for each in (simulated, planned)]


# ---------------------------------------------------------------------------- the page


def request(path: Path) -> None:
    """Send the page of `serve` a request of its user: METHOD ADDRESS, then the body."""
    line, _, body = path.read_bytes().partition(b"\n")
    method, _, address = line.decode("utf-8", "replace").partition(" ")
    place, _, query = address.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": place or "/",
        "raw_path": place.encode() or b"/",
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", HOST.encode()), (b"x-wattree-token", TOKEN.encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8080),
    }
    status = _running().status(scope, body)
    assert status < 500, f"answered with {status}"


class _Running:
    """A server for some requests: its worker takes half a second to load what it needs."""

    def __init__(self) -> None:
        from wattree.serve.app import make_app

        self.left = _REQUESTS
        self._app = make_app(TOKEN, frozenset({HOST}), plans=NoPlans())
        self._life, self._loop = living(self._app), asyncio.Runner()
        self._loop.run(self._life.__aenter__())
        atexit.register(self.end)

    def status(self, scope: dict[str, Any], body: bytes) -> int:
        """Return the status that a request is answered with."""
        self.left -= 1
        try:
            return self._loop.run(status_of(self._app, scope, body))
        except BaseException:
            self.left = 0  # who knows what it is worth now
            raise

    def end(self) -> None:
        """End it and its worker."""
        atexit.unregister(self.end)
        self._loop.run(self._life.__aexit__(None, None, None))
        self._loop.close()


def _running() -> _Running:
    """Return the server that runs, or a new one: each takes so many files, and keeps answers."""
    found = _servers.pop() if _servers else _Running()
    if found.left == 0:
        found.end()
        found = _Running()
    _servers.append(found)
    return found


_STATE: Mapping[str, str] = {
    "model": "gpt2", "node": "dgx-a100", "nodes": "1", "sequence_length": "1024",
    "global_batch": "64", "tp": "2", "micro_batch": "2", "sharding": "zero1",
}  # fmt: skip
_MORE = (
    *("{bucket: 25 MiB}", "tree: {}", "stage_layers: [6, 6]", "offload: {optimizer: host}", "[1]"),
    *("mesh: {a: 2, b: 4}", "dp: 3\ndp: 4", "a: &a [*a]", "? [1]\n: 2", "ghosts: 4", "!!set {a}"),
)


def requests() -> Sequence[bytes]:
    """Return good requests."""
    query = urlencode(_STATE)
    return [
        *(f"GET /{name}?{query}\n".encode() for name in ("", "controls", "figures", "step")),
        *(f"GET /{name}?{query}\n".encode() for name in ("job.yaml", "report.html")),
        f"GET /framework.zip?{query}&to=torchtitan\n".encode(),
        f"GET /compare?{urlencode([('with', query), ('with', query)])}\n".encode(),
        f"POST /plans?{query}\n".encode(),
        b"POST /files?name=a.json\n" + json.dumps({"model_type": "gpt2", "n_layer": 2}).encode(),
        b"POST /files?name=a.yaml\nname: a\ndevice: h100-sxm\ndevices: 4\n",
    ]


def drawn_request(chance: random.Random) -> bytes:
    """Return a request with some controls at other values."""
    from wattree.serve.state import STRATEGY_KEYS

    state = dict(_STATE)
    keys = (*STRATEGY_KEYS, *_STATE, "more", "site", "precision", "software", "optimizer", "to")
    usual = ("1", "2", "4", "8", "3", "auto", "none", "full", "zero3", "true", "ring", "1f1b")
    for _ in range(chance.randint(1, 4)):
        key = chance.choice(keys)
        state[key] = chance.choice(_MORE if key == "more" else (*usual, *usual, *VALUES))
    query = urlencode(state)
    if chance.random() < 0.2:
        query = urlencode([("with", query), ("with", urlencode(_STATE))])
    method = "GET" if chance.random() < 0.8 else chance.choice(METHODS)
    places = ("/figures", "/figures", "/controls", "/", "/job.yaml", "/step", "/compare")
    place = chance.choice(places if chance.random() < 0.9 else PATHS)
    return f"{method} {place}?{query}\n".encode("utf-8", "surrogateescape")
