"""Fresh interpreters on this machine, each with a pipe to the process that started it.

When that process is killed, the pipe ends and so does the child; when a child is killed, its parent
sees the pipe end.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import IO

#: Of libraries that would start threads of their own on every core.
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
_PROGRAM = (
    # The parent decides what an interrupt ends, also while this one imports.
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path[:] = sys.argv[3:]; "
    "from importlib import import_module; import_module(sys.argv[1]).serve(int(sys.argv[2]))"
)


class PipedProcess:
    """A process and its pipe.

    Args:
        module: Its function `serve` is called with the descriptor of the other end of the pipe.
        threads: That its libraries compute with.
        printed: File for all that it prints; the parent's outputs if None.
    """

    def __init__(self, module: str, *, threads: int = 1, printed: IO[str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        self.process = subprocess.Popen(  # noqa: S603 - this interpreter and a program of ours
            [sys.executable, "-c", _PROGRAM, module, str(descriptor), *sys.path],
            pass_fds=[descriptor],
            env=os.environ | dict.fromkeys(_THREADS, str(threads)),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
        )
        theirs.close()
        self.pipe = Connection(ours.detach())

    def end(self) -> None:
        """End the process, whatever it is at."""
        self.pipe.close()
        self.process.kill()
        self.process.wait()

    def ending(self) -> str:
        """Wait for the process, whose pipe has ended; return how it ended."""
        code = self.process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"
