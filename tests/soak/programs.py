"""Programs that are started, watched for a state, ended hard, and searched for what they left."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.soak.readers import ROOT
from wattree.runtime.colocation.processes import Process, is_alive, marked

__all__ = ["LIMIT_S", "Program", "command_of", "environment", "started"]

#: No machine takes longer to reach a state. [s]
LIMIT_S = 600.0
_MARK = "WATTREE_SOAK"
_LOOK_EVERY_S = 0.005
_PACKAGE = f"{Path('src') / 'wattree'}/"
_FOREIGN = ("OMPI_", "PMI", "SLURM_", "WATTREE_", "MASTER_")


@dataclass(slots=True)
class Program:
    """A started program and all that descends from it.

    Attributes:
        process: Its leader.
        token: Value of the mark that it and its children carry.
        said, errors: What it writes.
    """

    process: subprocess.Popen[bytes]
    token: str
    said: Path
    errors: Path

    def await_state(self, is_there: Callable[[], bool]) -> bool:
        """Wait for a state; return whether it came before the program ended."""
        until_s = time.monotonic() + LIMIT_S
        while not is_there():
            if self.process.poll() is not None:
                return is_there()
            if time.monotonic() > until_s:
                raise TimeoutError(f"no such state: {self.errors.read_text()[-2000:]}")
            time.sleep(_LOOK_EVERY_S)
        return True

    def family(self) -> list[Process]:
        """Return all of its running processes, including the leader."""
        return [process for process in marked(_MARK, self.token) if is_alive(process)]

    def children(self) -> list[Process]:
        """Return its processes but the leader."""
        return [process for process in self.family() if process.pid != self.process.pid]

    def signal(self, number: int, pid: int) -> None:
        """Send a signal; who has just ended gets none."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def ended(self) -> int | None:
        """Return the leader's exit code; None where it does not end."""
        try:
            return self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            return None

    def traceback(self) -> str:
        """Return where a traceback of ours on standard error ends; empty without one.

        An interrupt while Python still loads modules is Python's own to report; what is ended while
        it reports that leaves it without its last line.
        """
        text = self.errors.read_text(errors="replace")
        begin = text.rfind("Traceback (most recent call last)")
        if begin < 0 or _PACKAGE not in (text := text[begin:].strip()):
            return ""
        first, *rest = text.splitlines()
        # What others print may follow: a traceback ends with its first line that is not indented.
        ends = [number for number, line in enumerate(rest, 1) if not line.startswith(" ")]
        lines = [first, *rest[: ends[0] if ends else len(rest)]]
        ours = [line.strip().partition(_PACKAGE)[2] for line in lines if _PACKAGE in line]
        cut = not ends or not lines[-1].strip()
        if ("KeyboardInterrupt" in lines[-1] or cut) and ours[-1].endswith("<module>"):
            return ""
        return f"{lines[-1][:200]} ({ours[-1]})"

    def orphans(self) -> list[str]:
        """Return what is left of its processes once they have had time to notice."""
        until_s = time.monotonic() + LIMIT_S / 2
        while (left := self.family()) and time.monotonic() < until_s:
            time.sleep(_LOOK_EVERY_S)
        return [f"{process.pid} {command_of(process.pid)}" for process in left]


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a program: no launcher's, and run-time files in `folder`."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        clean.pop(name, None)
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    runtime = folder / "runtime"
    runtime.mkdir(exist_ok=True)
    return clean | {
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        "XDG_RUNTIME_DIR": str(runtime),
    }


@contextlib.contextmanager
def started(
    words: Sequence[str], folder: Path, more: Mapping[str, str] | None = None
) -> Iterator[Program]:
    """Start `wattree WORDS` in a folder; end by number whatever of it is left behind the block."""
    token = secrets.token_hex(8)
    said, errors = folder / "said.txt", folder / "errors.txt"
    with said.open("wb") as output, errors.open("wb") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "wattree", *words],
            cwd=folder,
            env={**environment(folder), **(more or {}), _MARK: token},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=told,
            start_new_session=True,
            # Shells ignore SIGINT in what runs in the background, and children inherit it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
    program = Program(process, token, said, errors)
    try:
        yield program
    finally:
        for left in program.family():
            program.signal(signal.SIGKILL, left.pid)
        process.wait()


def command_of(pid: int) -> str:
    """Return the command line of a process; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
    except OSError:
        return ""
