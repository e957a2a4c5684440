"""Part 3: `train`, `launch`, `design` and `serve` are ended at any moment, then started again.

A moment is a state that is waited for (a line, a file, a finished point) and a random instant
after it. Every kill must leave no process; a second start must end well and lose nothing.
"""

from __future__ import annotations

import json
import random
import re
import signal
import sqlite3
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from ruamel.yaml import YAML

from tests.design.studies import small_study
from tests.soak.programs import LIMIT_S, Program, command_of, started
from wattree.runtime.launch.script import reserved_port

__all__ = [
    "DESIGN_ALONE",
    "DESIGN_WORDS",
    "SCRIPT",
    "TRAIN",
    "TRAIN_WORDS",
    "VICTIMS",
    "Broken",
    "finished",
    "finished_study",
    "kill",
    "losses",
    "outcomes",
    "remains",
    "study",
    "uninterrupted_losses",
    "uninterrupted_points",
    "without_times",
    "write_yaml",
]

Broken = list[tuple[str, str]]
#: Processes without which a launch goes on: the one that tidies up after it, and children
#: of its ranks.
BYSTANDER = "a bystander"
_BYSTANDERS = ("wattree.runtime.colocation.keeper", "time.sleep(3600)")
_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
#: Longest instant between a state and the signal. [s]
_AFTER_S = 0.3


def shoot(program: Program, chance: random.Random, *, spares: str = "") -> str:
    """Send a signal to the leader or one of its children; return what was sent to whom.

    Args:
        program: Whose processes.
        chance: Decides all.
        spares: Children are left alone whose command holds this; none if it is empty.
    """
    number = chance.choice(_SIGNALS)
    time.sleep(chance.uniform(0.0, _AFTER_S))  # the moment itself, not a wait for a state
    children = [
        each for each in program.children() if not spares or spares not in command_of(each.pid)
    ]
    to_leader = chance.random() < 0.5
    pid = program.process.pid if to_leader or not children else chance.choice(children).pid
    name = "the leader" if pid == program.process.pid else "a child"
    name = BYSTANDER if any(word in command_of(pid) for word in _BYSTANDERS) else name
    program.signal(number, pid)
    return f"{number.name} to {name}"


def remains(program: Program, what: str) -> Broken:
    """Return what is wrong right after a kill: a leader that does not end, processes left."""
    found = []
    if program.ended() is None:
        found.append(("hang", f"{what}: it did not end"))
    if left := program.orphans():
        found.append(("orphans", f"{what}: {left}"))
    if line := program.traceback():
        found.append(("traceback", f"{what}: {line}"))
    return found


def finished(words: list[str], folder: Path, what: str) -> Broken:
    """Run a command to its end; return what is wrong with that."""
    with started(words, folder) as program:
        code = program.ended()
        if code != 0:
            errors = program.errors.read_text(errors="replace").strip()
            return [("restart", f"{what}: then exit code {code}: {errors[-300:]}")]
    return []


# ---------------------------------------------------------------------------------- train

_STEPS, _EVERY = 120, 10
TRAIN = {
    "model": {"ffn": {"width": 32, "depth": 2, "activation": "tanh"}},
    "data": {"global_batch": 8, "source": "synthetic-regression"},
    "precision": "fp32",
    "optimizer": "adam",
    "cluster": {"node": "2x-epyc-7742"},
    "strategy": {"preset": "phantom", "tp": 2, "ghosts": 4},
    "training": {
        "steps": _STEPS,
        "seed": 1,
        "learning_rate": 0.01,
        "checkpoint": {"dir": "saved", "every": _EVERY},
    },
}
TRAIN_WORDS = ["train", "job.yaml", "--json", "result.json"]


def write_yaml(path: Path, mapping: Mapping[str, Any]) -> None:
    """Write a mapping as YAML."""
    with path.open("w", encoding="utf-8") as file:
        YAML(typ="safe", pure=True).dump(dict(mapping), file)


def losses(folder: Path) -> list[float]:
    """Return the losses of all steps that a finished run knows."""
    record = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return list(record["training"]["losses"])


@cache
def uninterrupted_losses() -> tuple[float, ...]:
    """Return those of a run that nothing disturbed."""
    with tempfile.TemporaryDirectory() as made:
        write_yaml(Path(made) / "job.yaml", TRAIN)
        assert not finished(TRAIN_WORDS, Path(made), "uninterrupted")
        return tuple(losses(Path(made)))


def train(chance: random.Random, folder: Path) -> Broken:
    """Two ranks that save often: the resumed run has the losses of an uninterrupted one."""
    write_yaml(folder / "job.yaml", TRAIN)
    saved = folder / "saved"
    at = chance.choice((None, *range(0, _STEPS, _EVERY)))
    with started(TRAIN_WORDS, folder) as program:

        def is_there() -> bool:
            if at is None:  # while it starts
                return len(program.children()) > chance.randint(0, 2)
            if at == 0:
                return "step 1/" in program.errors.read_text(errors="replace")
            return (saved / f"step-{at}").exists() or (saved / f".step-{at}.partial").exists()

        program.await_state(is_there)
        what = f"train at {'the start' if at is None else f'step {at}'}, {shoot(program, chance)}"
        broken = remains(program, what)
    if (folder / "result.json").exists():
        return broken  # the signal came too late
    if "SIGKILL" in what and (saved / f"step-{_STEPS}").exists():
        return broken  # all is trained and kept; only the figures of the run are gone
    broken += finished(TRAIN_WORDS, folder, what)
    if not broken and (found := tuple(losses(folder))) != uninterrupted_losses():
        pairs = enumerate(zip(found, uninterrupted_losses(), strict=False), start=1)
        first = next((step for step, (a, b) in pairs if a != b), len(found) + 1)
        broken.append(("losses", f"{what}: {len(found)} losses, other ones from step {first} on"))
    return broken


# --------------------------------------------------------------------------------- launch

SCRIPT = """
import os, pathlib, subprocess, sys, time
place = pathlib.Path(sys.argv[1])
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
(place / f"ready-{os.environ['RANK']}").touch()
while not (place / "go").exists():
    time.sleep(0.01)
grandchild.kill()
(place / f"done-{os.environ['RANK']}").touch()
"""
RANKS = 2
#: This interpreter: `python` may be a script whose own helpers would be hit.
_LAUNCH_WORDS = [
    *("launch", "-q", str(RANKS), "--device", "cpu"),
    *("--", sys.executable, "script.py", "."),
]


def launch(chance: random.Random, folder: Path) -> Broken:
    """Ranks with children of their own: all end with the launcher, and its files are tidied up."""
    (folder / "script.py").write_text(SCRIPT)
    wanted = chance.randint(0, RANKS)
    with started(_LAUNCH_WORDS, folder) as program:
        program.await_state(lambda: len(list(folder.glob("ready-*"))) >= wanted)
        # A child that still has the launcher's command is not yet what it will be: a rank, or a
        # bystander, which hears no signal.
        shot = shoot(program, chance, spares="wattree launch")
        what = f"launch with {wanted} ranks ready, {shot}"
        if what.endswith(BYSTANDER) or "SIGINT" in shot:
            # Python may swallow SIGINT while it starts: of 1,500 bare scripts 3 went on ("Exception
            # ignored in ... cb", where it imports). Who heard none ends as it would have.
            (folder / "go").touch()
        broken = remains(program, what)
    for place in folder.glob("ready-*"):
        place.unlink()
    (folder / "go").touch()
    broken += finished(_LAUNCH_WORDS, folder, what)
    if not broken and len(list(folder.glob("done-*"))) != RANKS:
        broken.append(("restart", f"{what}: then not all ranks ran"))
    if states := [p for p in (folder / "runtime").glob("wattree-launch-*/*") if p.is_dir()]:
        broken.append(("left over", f"{what}: state of {len(states)} launchers"))
    return broken


# --------------------------------------------------------------------------------- design

_POINTS = 24
DESIGN_WORDS = ["design", "study.yaml", "--workers", "2", "--json", "result.json"]
#: Points are evaluated by one process, which finds what several do.
DESIGN_ALONE = ["design", "study.yaml", "--workers", "1", "--json", "result.json"]


def study() -> dict[str, Any]:
    """Return a study of many points that take some milliseconds each."""
    found = small_study()
    found["axes"]["bandwidth"]["points"] = _POINTS // 2
    return found


def outcomes(store: Path) -> dict[str, Any]:
    """Return key → outcome of the finished points of a store."""
    if not store.exists():
        return {}
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=10)) as file:
            rows = file.execute("SELECT key, outcome FROM points WHERE outcome NOT NULL").fetchall()
    except sqlite3.OperationalError:  # its tables are not made yet
        return {}
    return {key: json.loads(text) for key, text in rows}


@cache
def _finished_study() -> tempfile.TemporaryDirectory[str]:
    made = tempfile.TemporaryDirectory()
    write_yaml(Path(made.name) / "study.yaml", study())
    assert not finished(DESIGN_ALONE, Path(made.name), "uninterrupted")
    return made


def finished_study() -> Path:
    """Return a folder with a study that has run to its end; of the process, removed by it."""
    return Path(_finished_study().name)


def uninterrupted_points() -> dict[str, Any]:
    """Return the outcomes of a study that nothing disturbed."""
    return outcomes(finished_study() / "study.results.sqlite")


def design(chance: random.Random, folder: Path) -> Broken:
    """No finished point is lost, and in the end all are as if nothing had happened."""
    write_yaml(folder / "study.yaml", study())
    store = folder / "study.results.sqlite"
    at = chance.randint(0, _POINTS - 2)
    with started(DESIGN_WORDS, folder) as program:
        program.await_state(lambda: store.exists() and len(outcomes(store)) >= at)
        what = f"design at {at} points, {shoot(program, chance)}"
        before = outcomes(store)
        broken = remains(program, what)
    after = outcomes(store)
    if lost := [key for key, outcome in before.items() if after.get(key) != outcome]:
        broken.append(("points", f"{what}: {len(lost)} finished points are lost"))
    broken += finished(DESIGN_WORDS, folder, what)
    final = outcomes(store)
    if lost := [key for key, outcome in after.items() if final.get(key) != outcome]:
        broken.append(("points", f"{what}: {len(lost)} finished points were evaluated again"))
    if not broken and without_times(final) != without_times(uninterrupted_points()):
        broken.append(("points", f"{what}: results differ from an uninterrupted study's"))
    return broken


def without_times(points: Mapping[str, Any]) -> dict[str, Any]:
    """Return outcomes without how long it took to find them."""
    return {key: {k: v for k, v in each.items() if k != "seconds"} for key, each in points.items()}


# ---------------------------------------------------------------------------------- serve

_STATE = {
    "model": "gpt2", "node": "dgx-a100", "sequence_length": "1024", "global_batch": "64",
    "micro_batch": "1",
}  # fmt: skip


def _address(program: Program) -> str:
    """Return where a server that has started answers, with its token; empty if it ended before."""
    found: list[str] = []

    def is_there() -> bool:
        found[:] = re.findall(r"http://\S+token=\S+\n", program.errors.read_text(errors="replace"))
        return bool(found)

    return found[0].strip() if program.await_state(is_there) else ""


def _asked(address: str, path: str, method: str = "GET") -> int:
    """Return the status of an answer to the small job; 0 without one."""
    base, _, token = address.partition("/?token=")
    request = urllib.request.Request(
        f"{base}{path}?{urlencode(_STATE)}", method=method, headers={"X-Wattree-Token": token}
    )
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def serve(chance: random.Random, folder: Path) -> Broken:
    """A server, planning or not: nothing is left of it, and the next one has its port."""
    with reserved_port() as port:
        return _served(chance, folder, port)


def _served(chance: random.Random, folder: Path, port: int) -> Broken:
    words = ["serve", "--no-browser", "--port", str(port)]
    place = folder / "temporary"
    place.mkdir()
    more = {"TMPDIR": str(place)}
    is_planning = chance.random() < 0.7
    with started(words, folder, more) as program:
        if not (address := _address(program)):
            return [("serve", f"did not start: {program.errors.read_text(errors='replace')}")]
        if is_planning and _asked(address, "/plans", "POST") != 201:
            return [("serve", "a plan was not begun")]
        shot = shoot(program, chance)
        what = f"serve{', planning' if is_planning else ''}, {shot}"
        broken = []
        if shot.endswith("a child"):  # the server goes on with another one
            if (status := _asked(address, "/report.html")) != 200:
                broken.append(("serve", f"{what}: then {status} for a report"))
            program.signal(signal.SIGTERM, program.process.pid)
        broken += remains(program, what)
    with started(words, folder, more) as program:
        address = _address(program)
        if (status := _asked(address, "/figures") if address else 0) != 200:
            broken.append(("restart", f"{what}: then {status} for the figures"))
        program.signal(signal.SIGINT, program.process.pid)
        broken += remains(program, f"{what}, then SIGINT")
    if left := [path.name for path in place.glob("wattree-*")]:
        broken.append(("left over", f"{what}: {left}"))
    return broken


VICTIMS: Mapping[str, Callable[[random.Random, Path], Broken]] = {
    "train": train,
    "launch": launch,
    "design": design,
    "serve": serve,
}


def kill(seed: int, number: int) -> Broken:
    """Return what kill `number` of a seed broke, kind and words; the victims take turns."""
    chance = random.Random(f"{seed} kill {number}")
    name = sorted(VICTIMS)[number % len(VICTIMS)]
    with tempfile.TemporaryDirectory() as made:
        return [(f"{name}: {kind}", what) for kind, what in VICTIMS[name](chance, Path(made))]
