"""Starts ranks of a function in processes of their own, joined by gloo, and ends them.

    results = run_ranks(4, "tests/runtime/cases.py:function", {"k": 2})

Each rank runs one thread, has `torch.distributed` started, calls `function(**arguments)` and hands
back what it returns (JSON). What fails first is shown first, and the others are ended by their id.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from unittest import mock

__all__ = ["Forked", "RankError", "forked_worker", "run_ranks", "start_python"]

ROOT = Path(__file__).resolve().parents[2]
#: What a rank runs: JSON on its command line.
_PROGRAM = """
import importlib.util, json, os, sys
from datetime import timedelta
told = json.loads(sys.argv[1])
import torch, torch.distributed as dist
torch.set_num_threads(1)
path, name = told["function"].rsplit(":", 1)
spec = importlib.util.spec_from_file_location("cases_of_ranks", path)
module = importlib.util.module_from_spec(spec)
sys.modules["cases_of_ranks"] = module
spec.loader.exec_module(module)
if told["start"]:
    dist.init_process_group(
        "gloo", init_method="file://" + told["store"], rank=told["rank"],
        world_size=told["size"], timeout=timedelta(seconds=told["timeout_s"]),
    )
found = getattr(module, name)(**told["arguments"])
with open(told["result"] + ".part", "w") as file:
    json.dump(found, file)
os.replace(told["result"] + ".part", told["result"])
if told["start"]:
    dist.barrier()
    dist.destroy_process_group()
"""
#: What every process of ranks needs before its libraries are loaded.
_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    "GLOO_SOCKET_IFNAME": "lo",  # a name of the host need not resolve
}


class RankError(AssertionError):
    """A rank failed, or did not end in time.

    Attributes:
        rank: Which one; of several, the first.
        code: What it exited with; None for one that did not end.
        errors: What each rank wrote to standard error.
    """

    def __init__(self, rank: int, code: int | None, errors: Mapping[int, str]) -> None:
        self.rank, self.code, self.errors = rank, code, dict(errors)
        what = "did not end in time" if code is None else f"exited with {code}"
        super().__init__(f"rank {rank} {what}:\n{self.errors.get(rank, '')[-6000:]}")


def run_ranks(
    size: int,
    function: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    limit_s: float = 600.0,
    timeout_s: float = 300.0,
    start: bool = True,
    environment: Mapping[str, str] | None = None,
) -> list[Any]:
    """Return what `function` returned on every rank.

    Args:
        size: Ranks.
        function: `path/of/file.py:name`, from the checkout.
        arguments: By keyword; plain values.
        limit_s: Time after which all are ended. [s]
        timeout_s: Of the process group. [s]
        start: Whether to start torch.distributed.
        environment: Added to that of the processes.

    Raises:
        RankError: A rank failed or hung.
    """
    path, name = function.rsplit(":", 1)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        told = {
            "function": f"{ROOT / path}:{name}",
            "arguments": dict(arguments or {}),
            "store": str(folder / "store"),  # a file: no port that another program might take
            "size": size,
            "timeout_s": timeout_s,
            "start": start,
        }
        children: list[Forked] = []
        try:
            for rank in range(size):
                mine = {**told, "rank": rank, "result": str(folder / f"result-{rank}")}
                where = folder / f"errors-{rank}"
                where.touch()  # it may be killed before it opens it
                words = ["-c", _PROGRAM, json.dumps(mine)]
                children.append(start_python(words, where, environment or {}))
            _await(children, folder, time.monotonic() + limit_s)
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                child.wait()
        return [json.loads((folder / f"result-{rank}").read_text()) for rank in range(size)]


class Forked(ForkServerProcess):
    """A Python forked from the process that has loaded PyTorch, with the methods of a `Popen`."""

    def poll(self) -> int | None:
        """Return what it exited with, if it has."""
        return self.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until it has ended; return what it exited with."""
        self.join(timeout)
        return self.exitcode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended, which it may at any moment."""
        if self.pid is not None and self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkedChild:
    """Stands in for `subprocess.Popen` where ranks are started: `python …` as a fork of itself."""

    def __init__(  # what `wattree.runtime.colocation.children` gives
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int,
        stdout: IO[bytes] | int | None,
        stderr: IO[bytes] | None,
        start_new_session: bool,
        pass_fds: Sequence[int],
        preexec_fn: Callable[[], None] | None,
    ) -> None:
        assert (command[0], stdin, start_new_session) == (sys.executable, subprocess.DEVNULL, True)
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for number, place in enumerate((nothing, stdout, stderr)):
            if place is not None:
                own = nothing if isinstance(place, int) else place.fileno()
                os.dup2(own, number)
        for number in [int(one.name) for one in Path("/proc/self/fd").iterdir()]:
            if number > 2 and number not in pass_fds:
                with contextlib.suppress(OSError):
                    os.close(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if preexec_fn is not None:
            preexec_fn()
        os._exit(_as_python(command[1:], env))

    def poll(self) -> int | None:
        """Return what it exited with, if it has."""
        return self._waited(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until it has ended."""
        end_s = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end_s is not None and time.monotonic() > end_s:
                raise subprocess.TimeoutExpired("rank", timeout or 0.0)
            time.sleep(0.005)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def _waited(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def start_python(
    words: Sequence[str],
    output: Path,
    environment: Mapping[str, str],
    *,
    errors: Path | None = None,
    folder: Path = ROOT,
) -> Forked:
    """Start `python WORDS` without loading PyTorch anew, nor in the ranks that it starts.

    Args:
        words: `-c`, a program and its arguments, `-m` and a module, or a script.
        output: File for what it prints.
        environment: Added to that of this process and to what ranks need.
        errors: File for its standard error; that of its output if None.
        folder: Where it runs.
    """
    _load_once()
    variables = dict(os.environ | _VARIABLES | environment)
    places = (str(output), str(errors or output), str(folder))
    started = Forked(target=_forked, args=(list(words), places, variables))
    started.start()
    return started


def forked_worker(command: Sequence[str], *, pass_fds: Sequence[int], **_: Any) -> Forked:
    """Stand in for `subprocess.Popen` in `wattree.child`: a worker without loading PyTorch anew."""
    _load_once()
    (descriptor,) = pass_fds
    with Connection(os.dup(descriptor)) as pipe:
        started = Forked(target=_worked, args=(command[3], pipe))
        started.start()
    return started


def _worked(module: str, pipe: Connection) -> None:
    importlib.import_module(module).serve(os.dup(pipe.fileno()))


@functools.cache
def _load_once() -> None:
    """Start the process that ranks are forked from; it ends with this one."""
    with mock.patch.dict(os.environ, _VARIABLES):
        forkserver.set_forkserver_preload(["tests.distributed.frozen"])
        forkserver.ensure_running()
    # Else it would outlive this process by a moment, and its time be counted nowhere.
    atexit.register(forkserver._forkserver._stop)


def _forked(words: Sequence[str], places: Sequence[str], variables: Mapping[str, str]) -> None:
    """Do in this process what `python WORDS` does, to what runs at the very end."""
    from wattree.runtime.colocation import children

    children.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": ForkedChild})
    output, errors, folder = places
    for number, place in ((1, output), (2, errors)):
        with Path(place).open("ab", buffering=0) as file:
            os.dup2(file.fileno(), number)
    os.chdir(folder)
    raise SystemExit(_as_python(words, variables))


def _as_python(words: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run `python WORDS` here; return its exit code."""
    os.environ.clear()
    os.environ.update(variables)
    atexit._clear()  # of the process that this was forked from
    try:
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(compile(words[1], "program", "exec"), {"__name__": "__main__"})
        elif words[0] == "-m":
            sys.argv = list(words[1:])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as left:
        if isinstance(left.code, str):
            sys.stderr.write(f"{left.code}\n")
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:  # noqa: BLE001 - any of a program's
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
        sys.excepthook(sys.last_type, sys.last_value, sys.last_traceback)
        return 1
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _await(children: Sequence[Forked], folder: Path, end_s: float) -> None:
    while True:
        codes = [child.poll() for child in children]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            _await_all_messages(children)
            first = min(failed, key=lambda rank: _ended_s(folder, rank))
            raise RankError(first, codes[first], _errors(folder, len(children)))
        if None not in codes:
            return
        if time.monotonic() > end_s:
            raise RankError(codes.index(None), None, _errors(folder, len(children)))
        time.sleep(0.02)


def _await_all_messages(children: Sequence[Forked]) -> None:
    """Wait until the peers of a rank that failed have failed of it, but not for one that hangs."""
    end_s = time.monotonic() + 5.0
    while time.monotonic() < end_s and any(child.poll() is None for child in children):
        time.sleep(0.02)


def _ended_s(folder: Path, rank: int) -> float:
    """Return when a rank last said something; of one that failed, when it did."""
    return (folder / f"errors-{rank}").stat().st_mtime


def _errors(folder: Path, size: int) -> dict[int, str]:
    return {rank: (folder / f"errors-{rank}").read_text(errors="replace") for rank in range(size)}
