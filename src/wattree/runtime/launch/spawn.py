"""The ranks of a job as child processes, none of which outlives this process or the others.

Signals reach the ranks through this process. A rank that fails ends the job, and what it said comes
first. Linux ends a child whose parent is gone; elsewhere it ends itself (`watch_parent`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from wattree.errors import RunError
from wattree.files import write_atomic
from wattree.json_text import parsed_object
from wattree.process import handled_signals
from wattree.runtime.colocation.children import Child, Start, end_children, started
from wattree.runtime.launch.environment import STORE
from wattree.temporary import temporary_folder

#: Folder in which ranks write their failures, so that the first failure is reported first.
FAILURES = "WATTREE_TRAIN_FAILURES"
#: Descriptor that ends when the parent does.
_PARENT = "WATTREE_TRAIN_PARENT"
#: Once a rank has failed, others may be about to say why, too; the earliest counts. [s]
_SETTLE_S = 0.3
#: Longest wait for the rank that failed by itself, where others say that they lost one. [s]
_CAUSE_S = 5.0
#: Ranks that were asked to stop have so long to write a checkpoint. [s]
GRACE_S = 60.0
#: Between two looks at the ranks: often at first, when most goes wrong, then at little cost. [s]
_LOOK_EVERY_S, _LOOK_LATER_S, _FIRST_S = 0.02, 0.1, 10.0
#: What is left of a rank that failed ends then at the latest. [s]
_GONE_AFTER_S = 5.0
#: What is left of a job of which one rank alone was asked to stop has so long: it can meet no one,
#: only write what it has. [s]
_ALONE_S = 20.0
#: Exit code of what was asked to stop, and did.
INTERRUPTED = 130
#: What batch systems send before the time is up, for programs that save then.
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Failure reported by a rank.

    Attributes:
        code: Its exit code.
        message: Its error, in its own words.
        at_s: When, on the wall clock. [s]
        is_echo: It only noticed that another rank is gone.
        launcher: Number of the launcher that started it, and tells it.
    """

    rank: int
    code: int
    message: str
    at_s: float = float("inf")
    is_echo: bool = False
    launcher: int = 0


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


class LaunchWatch(Protocol):
    """Monitors something that ranks depend on."""

    def check(self) -> Failure | None:
        """Return the problem, None without one; called every few hundredths of a second."""
        ...


def run_ranks(
    command: Sequence[str],
    ranks: int,
    *,
    environment: Mapping[str, str],
    grace_s: float = GRACE_S,
    starts: Sequence[Start] | None = None,
    watches: Sequence[LaunchWatch] = (),
    begun: Callable[[Sequence[int]], None] | None = None,
    say: Callable[[str], None] | None = None,
    asked: list[int] | None = None,
) -> Finished:
    """Run `ranks` processes of a command to their end.

    Args:
        environment: Of the processes, without what tells them their rank.
        grace_s: How long ranks have between being asked to stop and being ended. [s]
        starts: What each process gets of its own, where they are ranks among those of other hosts,
            or any program. None: they are all the ranks; rank 0 alone writes to standard output.
        watches: Look after what ranks need; the job ends when one finds something wrong.
        begun: Called with the numbers of the processes once all have started.
        say: Takes a line for the user, who asked ranks to stop and has to wait for them; None:
            nothing is said.
        asked: Takes the signals by which ranks are asked to stop.

    Raises:
        RunError: They cannot be started.
    """
    with temporary_folder("train") as folder:
        ended, write_end = os.pipe()
        try:
            children = _started(command, ranks, environment, Path(folder), ended, starts)
            os.close(ended)
            try:
                asked = [] if asked is None else asked
                with _forwarding(children, asked, passes_on=starts is not None):
                    if begun is not None:
                        begun([child.process.pid for child in children])
                    grace = _Grace(asked, grace_s, say)
                    return _watched(children, Path(folder), grace, watches)
            finally:
                end_children(children)  # whatever went wrong here
        finally:
            os.close(write_end)


def _started(  # noqa: PLR0917 - the arguments of `run_ranks`, and what it made
    command: Sequence[str],
    ranks: int,
    environment: Mapping[str, str],
    folder: Path,
    parent: int,
    starts: Sequence[Start] | None,
) -> list[Child]:
    children: list[Child] = []
    for rank in range(ranks):
        reported = {**environment, FAILURES: str(folder), _PARENT: str(parent)}
        if starts is None:
            reported |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(ranks),
                STORE: str(folder / "store"),
            }
        try:
            child = started(
                command,
                reported,
                Start(rank=rank) if starts is None else starts[rank],
                keeps=(parent,),
                is_quiet=starts is None and rank > 0,
            )
        except OSError as error:
            end_children(children)
            raise RunError(
                command[0], [f"rank {rank} cannot be started ({error.strerror})"]
            ) from error
        except BaseException:
            end_children(children)
            raise
        children.append(child)
    return children


class _Grace:
    """The time that ranks have after they are asked to stop.

    Args:
        seconds: How long they have. [s]
        say: Takes a line for the user.
    """

    def __init__(self, asked: list[int], seconds: float, say: Callable[[str], None] | None) -> None:
        self._asked, self._seconds, self._say = asked, seconds, say
        self._until_s: float | None = None
        self._left_s: float | None = None

    @property
    def is_asked(self) -> bool:
        """Return whether ranks are asked to stop."""
        return bool(self._asked)

    def follow(self, children: Sequence[Child], codes: Sequence[int | None]) -> None:
        """Ask the rest to stop, some time after one of them alone was: they would wait for it."""
        if self._asked or INTERRUPTED not in codes:
            return
        now_s = time.monotonic()
        self._left_s = self._left_s or now_s
        if now_s > self._left_s + _GONE_AFTER_S:
            self._asked.append(signal.SIGTERM)
            self._seconds = min(self._seconds, _ALONE_S)
            for child, code in zip(children, codes, strict=True):
                if code is None:
                    child.process.send_signal(signal.SIGTERM)

    def is_over(self, running: int) -> bool:
        """Return whether to end the running ranks; print a line when their time starts."""
        if not self._asked:
            return False
        now_s = time.monotonic()
        if self._until_s is None:
            self._until_s = now_s + self._seconds
            if self._say is not None and len(self._asked) == 1:
                self._say(
                    f"asked to stop: waits up to {self._seconds:g} s for {running} process(es) to "
                    "end by themselves; a second signal (Ctrl-C) ends them now"
                )
        return len(self._asked) > 1 or now_s > self._until_s


def _watched(
    children: Sequence[Child], folder: Path, grace: _Grace, watches: Sequence[LaunchWatch]
) -> Finished:
    """Wait for all; end the rest if one fails, or if they do not stop on request."""
    begin_s = time.monotonic()
    while True:
        codes = [child.code() for child in children]
        if grace.is_asked and -signal.SIGTERM in codes:  # asked before it could say that it heard
            end_children(children)
            return Finished(code=INTERRUPTED, interrupted=True)
        noticed = [found for watch in watches if (found := watch.check()) is not None]
        if noticed or any(code not in {None, 0, INTERRUPTED} for code in codes):
            failure = _settled(children, folder, watches)
            end_children(children)
            return Finished(code=failure.code, failure=failure)
        if None not in codes:
            interrupted = INTERRUPTED in codes
            return Finished(code=INTERRUPTED if interrupted else 0, interrupted=interrupted)
        grace.follow(children, codes)
        if grace.is_over(codes.count(None)):
            end_children(children)
            return Finished(code=INTERRUPTED, interrupted=True)
        is_young = time.monotonic() - begin_s < _FIRST_S
        time.sleep(_LOOK_EVERY_S if is_young or grace.is_asked else _LOOK_LATER_S)


def _settled(children: Sequence[Child], folder: Path, watches: Sequence[LaunchWatch]) -> Failure:
    """Return the failure that came first; a rank that only noticed one may be quicker to say so."""
    time.sleep(_SETTLE_S)
    until_s = time.monotonic() + _CAUSE_S
    while True:
        all_ended = all(child.code() is not None for child in children)
        noticed = [found for watch in watches if (found := watch.check()) is not None]
        failure = _first_failure(children, folder, noticed)
        if not failure.is_echo or all_ended or time.monotonic() > until_s:
            return failure
        time.sleep(_LOOK_EVERY_S)


def _first_failure(children: Sequence[Child], folder: Path, noticed: Sequence[Failure]) -> Failure:
    """Return the first failure, reported by a rank or found from its end."""
    found = list(noticed)
    for path in folder.glob("failure*.json"):
        reported = _read_failure(path)
        if reported is not None:
            found.append(reported)
    record = {failure.rank for failure in found}
    for child in children:
        code = child.code()
        if child.rank not in record and code not in {None, 0, INTERRUPTED}:
            message = _silent(child.rank, code)
            at_s = child.gone_s or time.time()
            passed = max(code or 0, 0) or 1  # ends by signals are below 0
            found.append(Failure(rank=child.rank, code=passed, message=message, at_s=at_s))
    found = found or [Failure(rank=0, code=1, message="the ranks were killed")]
    return min(found, key=lambda failure: (failure.is_echo, failure.at_s))


def _silent(rank: int, code: int) -> str:
    if code >= 0:
        return f"rank {rank} ended with exit code {code}"
    name = signal.Signals(-code).name
    why = (
        ": by an unknown process; the kernel does it when memory runs out"
        if -code == signal.SIGKILL
        else ""
    )
    return f"rank {rank} was killed by signal {-code} ({name}){why}"


def _read_failure(path: Path) -> Failure | None:
    try:
        record = parsed_object(path.read_bytes())
        return Failure(
            rank=int(path.stem.removeprefix("failure")),
            code=int(record["code"]),
            message=str(record["message"]),
            at_s=float(record["at_s"]),
            is_echo=bool(record["is_echo"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # of a rank whose disk is full: its exit code still tells that it failed


def leave_failure(rank: int, *, code: int, message: str, is_echo: bool) -> bool:
    """Write this rank's failure where its parent reads it; return whether there is one."""
    folder = os.environ.get(FAILURES)
    if folder is None:
        return False
    record = {"code": code, "message": message, "at_s": time.time(), "is_echo": is_echo}
    write_atomic(Path(folder) / f"failure{rank}.json", json.dumps(record))
    return True


def end_soon(code: int) -> None:
    """End this process within five seconds: collectives may hold its threads."""

    def end() -> None:
        time.sleep(_GONE_AFTER_S)
        sys.stderr.flush()
        os._exit(code)

    threading.Thread(target=end, name="wattree-end", daemon=True).start()


def watch_parent() -> None:
    """End this process when the process that started its ranks ends; Linux does that itself.

    A process that was started with fewer open files than the environment names would read another
    file here, such as the one through which the ranks meet.
    """
    text = os.environ.get(_PARENT)
    if text is not None and sys.platform != "linux":
        threading.Thread(
            target=_end_after, args=(int(text),), name="wattree-parent", daemon=True
        ).start()


def _end_after(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.read(descriptor, 1)  # returns when no process holds the other end
    os._exit(1)


@contextlib.contextmanager
def _forwarding(children: Sequence[Child], asked: list[int], *, passes_on: bool) -> Iterator[None]:
    """Forward stop signals to all ranks, and add them to `asked`.

    With `passes_on` signals that mean what a program makes of them reach the ranks as they are.
    """

    def send(number: int) -> None:
        for child in children:
            if child.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(number)

    def forward(number: int, frame: FrameType | None) -> None:
        del frame
        asked.append(number)
        send(signal.SIGTERM)

    passed = _PASSED_ON if passes_on else ()
    with handled_signals(_FORWARDED, forward), handled_signals(passed, lambda each, _: send(each)):
        yield


def own_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs this program again."""
    return [sys.executable, "-m", "wattree", *arguments]
