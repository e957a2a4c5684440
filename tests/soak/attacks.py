"""Part 4: strangers at the launchers' port; flipped bits in what a study or a training run keeps.

A stranger may cost time, never the job. What is damaged may be refused in a sentence, or not matter
at all; what it may not do is end in a traceback, or in other results.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

from tests.soak.kills import (
    DESIGN_ALONE,
    SCRIPT,
    TRAIN,
    TRAIN_WORDS,
    Broken,
    finished_study,
    losses,
    outcomes,
    remains,
    uninterrupted_losses,
    uninterrupted_points,
    without_times,
    write_yaml,
)
from tests.soak.programs import Program, started

__all__ = ["ATTACKS", "attack"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ------------------------------------------------------------------------------ strangers


def _nonsense(chance: random.Random) -> bytes:
    """Return what a stranger says."""
    lie = {"rank": 0, "code": 9, "message": "lie", "at_s": 0.0}
    return chance.choice(
        (
            b"",
            chance.randbytes(chance.choice((1, 100, 5000))),
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\n" * 100,
            b"x" * 100_000,
            b"[" * 3000 + b"\n",
            b"null\n",
            json.dumps({"verdict": lie}).encode() + b"\n",
        )
    )


def _listens(port: int, program: Program) -> bool:
    """Return whether a program listens on a port."""
    own = set()
    for file in Path(f"/proc/{program.process.pid}/fd").glob("*"):
        with suppress(OSError):  # it was closed since
            own.add(str(file.readlink()))
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        found = int(local.partition(":")[2], 16)
        if state == "0A" and found == port and f"socket:[{inode}]" in own:
            return True
    return False


def _talk(chance: random.Random, port: int, open_links: ExitStack) -> None:
    """Connect once, say something, and stay or leave."""
    with suppress(OSError), ExitStack() as soon:
        link = socket.create_connection(("127.0.0.1", port), timeout=0.2)
        # Some stay until the end, and say no more.
        (open_links if chance.random() < 0.3 else soon).enter_context(link)
        link.sendall(_nonsense(chance))
        if chance.random() < 0.5:
            link.recv(100)


def strangers(chance: random.Random, folder: Path) -> Broken:
    """Two launchers meet after strangers talked to their port: the job runs all the same."""
    port, calls = _free_port(), chance.randint(1, 8)
    words = ["launch", "--device", "cpu", "--devices", "1", "--timeout", "600 s"]
    words += ["--", "python", "script.py", "."]
    programs: list[Program] = []
    with ExitStack() as stack:
        for rank in range(2):
            place = folder / f"launcher{rank}"
            place.mkdir()
            (place / "script.py").write_text(SCRIPT)
            (place / "go").touch()
            more = {
                "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            }  # fmt: skip
            programs.append(stack.enter_context(started(words, place, more)))
            if rank == 0:
                programs[0].await_state(lambda: _listens(port, programs[0]))
                for _ in range(calls):
                    _talk(chance, port, stack)
        codes = [program.ended() for program in programs]
        what = f"{calls} strangers"
        broken = [found for program in programs for found in remains(program, what)]
        if codes != [0, 0]:
            said = "; ".join(p.errors.read_text(errors="replace").strip()[-150:] for p in programs)
            broken.append(("job", f"{what}: launchers ended with {codes}: {said}"))
    return broken


# --------------------------------------------------------------------------------- damage


def _damage(chance: random.Random, path: Path) -> str:
    """Change a file as disks and copies do; return how."""
    content = bytearray(path.read_bytes())
    what = chance.choice(("flip", "flip", "flip", "zeros", "cut", "empty", "swap"))
    if not content:
        return "nothing"
    at = chance.randrange(len(content))
    if what == "flip":
        content[at] ^= 1 << chance.randrange(8)
    elif what == "zeros":
        content[at : at + 512] = bytes(len(content[at : at + 512]))
    elif what == "cut":
        del content[at:]
    elif what == "empty":
        content.clear()
    else:
        other = chance.randrange(len(content))
        content[at], content[other] = content[other], content[at]
    path.write_bytes(content)
    return f"{what} at {at} of {path.name}"


@cache
def _half_trained() -> Path:
    """Return a folder with a training run that was stopped half way."""
    folder = _kept("train")
    write_yaml(folder / "job.yaml", TRAIN)
    with started(TRAIN_WORDS, folder) as program:
        program.await_state((folder / "saved" / "step-60").exists)
        program.signal(signal.SIGTERM, program.process.pid)
        program.ended()
    return folder


@cache
def _kept_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def _kept(name: str) -> Path:
    folder = Path(_kept_folder().name) / name
    folder.mkdir()
    return folder


def store(chance: random.Random, folder: Path) -> Broken:
    """A damaged store is refused, or its results are those of an undamaged one."""
    shutil.copytree(finished_study(), folder, dirs_exist_ok=True)
    place = folder / "study.results.sqlite"
    what = _damage(chance, place)
    (folder / "result.json").unlink(missing_ok=True)
    with started(DESIGN_ALONE, folder) as program:
        code = program.ended()
        broken = remains(program, what)
        said = program.errors.read_text(errors="replace").strip()
    if code not in {0, 2}:
        broken.append(("exit code", f"{what}: {code}: {said[-200:]}"))
    elif code == 2 and "wattree: " not in said:
        broken.append(("silent", f"{what}: exit code 2 and no message: {said[-200:]}"))
    elif code == 0 and without_times(outcomes(place)) != without_times(uninterrupted_points()):
        broken.append(("results", f"{what}: taken for whole, with other results"))
    return broken


def checkpoint(chance: random.Random, folder: Path) -> Broken:
    """A damaged checkpoint is refused, or training goes on as if it were whole."""
    shutil.copytree(_half_trained(), folder, dirs_exist_ok=True)
    files = sorted(path for path in (folder / "saved").rglob("*") if path.is_file())
    path = chance.choice(files)
    what = f"{path.parent.name}: {_damage(chance, path)}"
    with started(TRAIN_WORDS, folder) as program:
        code = program.ended()
        broken = remains(program, what)
        said = program.errors.read_text(errors="replace").strip()
    if code not in {0, 2}:
        broken.append(("exit code", f"{what}: {code}: {said[-200:]}"))
    elif code == 0 and tuple(losses(folder)) != uninterrupted_losses():
        broken.append(("losses", f"{what}: taken for whole, with other losses"))
    return broken


ATTACKS: Mapping[str, Callable[[random.Random, Path], Broken]] = {
    "strangers": strangers,
    "store": store,
    "checkpoint": checkpoint,
}


def attack(seed: int, number: int) -> Broken:
    """Return what attack `number` of a seed broke, kind and words; the kinds take turns."""
    chance = random.Random(f"{seed} attack {number}")
    name = sorted(ATTACKS)[number % len(ATTACKS)]
    with tempfile.TemporaryDirectory() as made:
        return [(f"{name}: {kind}", what) for kind, what in ATTACKS[name](chance, Path(made))]
