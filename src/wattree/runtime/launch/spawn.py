"""The ranks of a job as child processes of this one, none of which outlives it or the others.

Signals reach the ranks through this process. A rank that fails ends the job, and what it said comes
first; a child whose parent is gone ends itself (`watch_parent`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from wattree.errors import RunError
from wattree.files import write_atomic
from wattree.runtime.launch.environment import STORE

__all__ = [
    "FAILURES",
    "INTERRUPTED",
    "Failure",
    "Finished",
    "leave_failure",
    "own_command",
    "run_ranks",
    "watch_parent",
]

#: Folder in which ranks leave what went wrong, so that the first one's message is told first.
FAILURES = "WATTREE_TRAIN_FAILURES"
#: Descriptor that ends when the parent does.
_PARENT = "WATTREE_TRAIN_PARENT"
#: Once a rank has failed, others may be about to say why, too; the earliest counts. [s]
_SETTLE_S = 0.3
#: Ranks that were asked to stop have so long to write a checkpoint. [s]
_GRACE_S = 60.0
_LOOK_EVERY_S = 0.02
#: Exit code of what was asked to stop, and did.
INTERRUPTED = 130
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a rank said when it failed.

    Attributes:
        rank: Which.
        code: Its exit code.
        message: Its error, in its own words.
        at_s: When, on the wall clock. [s]
        is_echo: It only noticed that another rank is gone.
    """

    rank: int
    code: int
    message: str
    at_s: float = float("inf")
    is_echo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a job ended.

    Attributes:
        code: Exit code: that of the rank that failed first; 130 if it was interrupted.
        failure: Of the rank that failed first; None if none did.
        interrupted: Whether it was asked to stop.
    """

    code: int
    failure: Failure | None = None
    interrupted: bool = False


@dataclass(slots=True)
class _Child:
    """A rank's process, and whether this one has ended it."""

    process: subprocess.Popen[bytes]
    was_ended: bool = False


def run_ranks(
    command: Sequence[str], ranks: int, *, environment: Mapping[str, str], grace_s: float = _GRACE_S
) -> Finished:
    """Run `ranks` processes of a command to their end.

    Args:
        command: Program and arguments, the same for all; rank 0 alone writes to standard output.
        ranks: How many.
        environment: Of the processes, without what tells them their rank.
        grace_s: How long ranks have between being asked to stop and being ended. [s]

    Raises:
        RunError: They cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="wattree-train-") as folder:
        ended, alive = os.pipe()
        try:
            children = _started(command, ranks, environment, Path(folder), ended)
            os.close(ended)
            with _forwarding(children) as asked:
                return _watched(children, Path(folder), asked, grace_s)
        finally:
            os.close(alive)


def _started(
    command: Sequence[str],
    ranks: int,
    environment: Mapping[str, str],
    folder: Path,
    parent: int,
) -> list[_Child]:
    children: list[_Child] = []
    for rank in range(ranks):
        told = {
            **environment,
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(ranks),
            STORE: str(folder / "store"),
            FAILURES: str(folder),
            _PARENT: str(parent),
        }
        try:
            child = subprocess.Popen(  # noqa: S603 - the program that runs now, with its arguments
                list(command),
                env=told,
                stdin=subprocess.DEVNULL,
                stdout=None if rank == 0 else subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(parent,),
            )
        except OSError as error:
            _end(children)
            raise RunError(
                command[0], [f"rank {rank} cannot be started ({error.strerror})"]
            ) from error
        children.append(_Child(child))
    return children


def _watched(
    children: Sequence[_Child], folder: Path, asked: list[int], grace_s: float
) -> Finished:
    """Wait for all; end the rest when one fails, or when they do not stop as asked."""
    asked_s: float | None = None
    while True:
        codes = [child.process.poll() for child in children]
        if asked and -signal.SIGTERM in codes:  # asked before it could say that it heard
            _end(children)
            return Finished(code=INTERRUPTED, interrupted=True)
        if any(code not in {None, 0, INTERRUPTED} for code in codes):
            time.sleep(_SETTLE_S)
            _end(children)
            failure = _first_failure(children, folder)
            return Finished(code=failure.code, failure=failure)
        if None not in codes:
            interrupted = INTERRUPTED in codes
            return Finished(code=INTERRUPTED if interrupted else 0, interrupted=interrupted)
        if asked and asked_s is None:
            asked_s = time.monotonic()
        if asked_s is not None and (len(asked) > 1 or time.monotonic() - asked_s > grace_s):
            _end(children)
            return Finished(code=INTERRUPTED, interrupted=True)
        time.sleep(_LOOK_EVERY_S)


def _first_failure(children: Sequence[_Child], folder: Path) -> Failure:
    found = []
    for rank, child in enumerate(children):
        told = _told(folder / f"failure{rank}.json", rank)
        if told is not None:
            found.append(told)
        elif not child.was_ended and child.process.returncode not in {0, INTERRUPTED}:
            message = _silent(rank, child.process.returncode)
            found.append(Failure(rank=rank, code=1, message=message))
    found = found or [Failure(rank=0, code=1, message="the ranks were killed")]
    return min(found, key=lambda failure: (failure.is_echo, failure.at_s))


def _silent(rank: int, code: int) -> str:
    if code >= 0:
        return f"rank {rank} ended with exit code {code} and said nothing"
    name = signal.Signals(-code).name
    why = (
        ": whoever did that said nothing; the kernel does it where memory runs out"
        if -code == signal.SIGKILL
        else ""
    )
    return f"rank {rank} was killed by signal {-code} ({name}){why}"


def _told(path: Path, rank: int) -> Failure | None:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Failure(
        rank=rank,
        code=int(said["code"]),
        message=str(said["message"]),
        at_s=float(said["at_s"]),
        is_echo=bool(said["is_echo"]),
    )


def leave_failure(rank: int, *, code: int, message: str, is_echo: bool) -> bool:
    """Leave what went wrong in a rank where its parent looks; return whether there is one."""
    folder = os.environ.get(FAILURES)
    if folder is None:
        return False
    said = {"code": code, "message": message, "at_s": time.time(), "is_echo": is_echo}
    write_atomic(Path(folder) / f"failure{rank}.json", json.dumps(said))
    return True


def watch_parent() -> None:
    """End this process when the one that started its ranks is gone, however it went."""
    text = os.environ.get(_PARENT)
    if text is None:
        return
    descriptor = int(text)

    def wait() -> None:
        with contextlib.suppress(OSError):
            os.read(descriptor, 1)  # returns when no process holds the other end
        os._exit(1)

    threading.Thread(target=wait, name="wattree-parent", daemon=True).start()


def _end(children: Sequence[_Child]) -> None:
    for child in children:
        if child.process.poll() is None:
            child.was_ended = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)  # with the helpers that it started
    for child in children:
        child.process.wait()


@contextlib.contextmanager
def _forwarding(children: Sequence[_Child]) -> Iterator[list[int]]:
    """Ask all ranks to stop when this process is asked to; yield the signals that came."""
    asked: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        del frame
        asked.append(number)
        for child in children:
            if child.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(signal.SIGTERM)

    if threading.current_thread() is not threading.main_thread():
        yield asked  # only the main thread may handle signals
        return
    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def own_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs this program again."""
    return [sys.executable, "-m", "wattree", *arguments]
