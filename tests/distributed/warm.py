"""A Python that has PyTorch loaded, for tests that start programs as their users do.

`warm_python()` is the path of a program to call in place of `sys.executable`: it lets a process
that has loaded PyTorch fork one that does what `python WORDS` does, hands it its own standard
streams, environment, processors and network, passes signals on, and ends as that one ends. What
such a program starts with `sys.executable` is warm again. Other limits are not passed on.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import fcntl
import functools
import importlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path
from unittest import mock

from tests.distributed.ranks import Forked, _as_python, _load_once

__all__ = ["warm_path", "warm_python"]

#: Programs that users start → the words after the path of a Python that does the same.
_PROGRAMS = {"python": "", "wattree": " -m wattree", "torchrun": " -m torch.distributed.run"}

#: What is called in place of Python: small, as it is started for every process.
_CLIENT = """#!{python} -IS
import _socket, array, os, signal, sys
words = sys.argv[1:]
while words and words[0] in ("-u", "-B"):
    del words[0]
def inherits(number):
    try:
        return os.fstat(number).st_mode > 0
    except OSError:
        return False
is_warm = words and (words[0] in ("-c", "-m") or not words[0].startswith("-"))
# A worker that is given a pipe is one of Python itself.
numbers = [int(number) for number in os.listdir("/proc/self/fd")]
if not is_warm or (words[0] == "-c" and any(map(inherits, filter((2).__lt__, numbers)))):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
import json
told = json.dumps([words, dict(os.environ), os.getcwd(), sorted(os.sched_getaffinity(0))]).encode()
end = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
end.connect({place!r})
spaces = [os.open("/proc/self/ns/" + name, os.O_RDONLY) for name in ("net", "mnt")]
files = array.array("i", [0, 1, 2, *spaces])
end.sendmsg([b"%12d" % len(told)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
end.sendall(told)
pid = int(end.recv(12))
passed = signal.SIGKILL
def pass_on(number, _):
    global passed
    passed = number
    os.kill(pid, number)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, pass_on)
code = end.recv(12)
if not code:
    signal.signal(passed, signal.SIG_DFL) if passed != signal.SIGKILL else None
    os.kill(os.getpid(), passed)
os._exit(int(code))
"""


@functools.cache
def warm_python() -> str:
    """Return the path of the program; the process that it asks is started at the first call."""
    folder = tempfile.TemporaryDirectory()
    program, place = Path(folder.name) / "python", Path(folder.name) / "socket"
    program.write_text(_CLIENT.format(python=sys.executable, place=str(place)))
    program.chmod(0o700)
    _load_once()
    server = Forked(target=serve, args=(str(place), str(program)))
    server.start()

    def stop() -> None:
        server.terminate()
        server.join()  # so that its time is counted here
        folder.cleanup()

    atexit.register(stop)
    while not place.exists():
        assert server.is_alive()
        time.sleep(0.005)
    return str(program)


def warm_path(folder: Path) -> str:
    """Return a `PATH` that begins with `folder`, in which the programs of users are warm."""
    for name, words in _PROGRAMS.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{warm_python()}"{words} "$@"\n')
        program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def serve(place: str, program: str) -> None:
    """Fork a process for everyone who asks, until the process that started this one has ended."""
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    asked.bind(f"{place}.new")
    asked.listen(64)
    Path(f"{place}.new").rename(place)
    signal.signal(signal.SIGCHLD, lambda *_: _reap())
    starter = multiprocessing.parent_process()
    assert starter is not None
    multiprocessing.set_start_method(None, force=True)  # programs begin without one
    while asked in wait([asked, starter.sentinel]):
        end, _ = asked.accept()
        if os.fork() == 0:
            asked.close()
            _answer(end, program)
        end.close()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(end: socket.socket, program: str) -> None:
    """Be the Python that was asked for."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    files = array.array("i")
    head, ((_, _, given),), _, _ = end.recvmsg(12, socket.CMSG_SPACE(5 * files.itemsize))
    files.frombytes(given)
    told = b""
    while len(told) < int(head):
        told += end.recv(int(head) - len(told))
    words, variables, folder, processors = json.loads(told)
    for name, space in zip(("net", "mnt"), files[3:], strict=True):
        if os.fstat(space).st_ino != Path(f"/proc/self/ns/{name}").stat().st_ino:
            assert ctypes.CDLL(None).setns(space, 0) == 0
    for number, stream in enumerate(files[:3]):
        os.dup2(stream, number)
    for number in files:
        os.close(number)
    # Those of the process that this was forked from know whether theirs could be sought.
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    os.chdir(folder)
    os.sched_setaffinity(0, processors)
    sys.executable = program
    end.sendall(b"%12d" % os.getpid())
    # The other end says no more: that it can be read means that it is gone, and this ends.
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
    import torch

    torch.set_num_threads(int(variables.get("OMP_NUM_THREADS", os.cpu_count())))
    paths = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    here = {"-c": [""], "-m": [folder]}.get(words[0], [str(Path(words[0]).resolve().parent)])
    sys.path[:] = [*here, *paths, *(path for path in sys.path if path)]
    with mock.patch.dict(os.environ, variables, clear=True):
        sys.modules.pop("sitecustomize", None)
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module("sitecustomize")
    leave, number = os._exit, os.getpid()

    def told_and_gone(code: int) -> None:
        if os.getpid() == number:  # its forks, such as workers of loaders, leave for themselves
            with contextlib.suppress(ValueError):  # from a thread, which may not
                signal.signal(signal.SIGIO, signal.SIG_IGN)
            end.sendall(b"%12d" % code)
        leave(code)

    os._exit = told_and_gone  # type: ignore[assignment]
    code = _as_python(words, variables)
    if (mpi := sys.modules.get("mpi4py.MPI")) is not None:
        mpi.Finalize()  # as the end of Python does
    os._exit(code)
