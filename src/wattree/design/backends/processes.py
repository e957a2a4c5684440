"""A pool of single-threaded processes on this machine.

Each worker is a fresh interpreter with a pipe of its own. When the run is killed, the pipe ends
and so does the worker; when a worker is killed, the run sees its pipe end.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait

from wattree.design.backends.backend import StudyWork
from wattree.design.outcome import Outcome
from wattree.design.points import DesignPoint
from wattree.errors import OutputError

#: Libraries that would start threads of their own on every core.
_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
_PROGRAM = (
    # The run decides what an interrupt ends, also while this one imports.
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path[:] = sys.argv[2:]; "
    "from wattree.design.backends.worker import serve; serve(int(sys.argv[1]))"
)
#: Workers that one point may cost before it is given up.
_MOST_DEATHS = 2


class _Worker:
    """A process and its pipe."""

    def __init__(self, work: StudyWork) -> None:
        ours, theirs = socket.socketpair()
        environment = os.environ | dict.fromkeys(_ONE_THREAD, "1")
        descriptor = theirs.fileno()
        self.process = subprocess.Popen(  # noqa: S603 - this interpreter and a program of ours
            [sys.executable, "-c", _PROGRAM, str(descriptor), *sys.path],
            pass_fds=[descriptor],
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.pipe = Connection(ours.detach())
        self.point: DesignPoint | None = None
        self.pipe.send(work)

    def end(self) -> None:
        """End the process, whatever it is at."""
        self.pipe.close()
        self.process.kill()
        self.process.wait()


class Processes:
    """Evaluates points in processes of this machine."""

    def __init__(self, work: StudyWork, workers: int) -> None:
        self._work, self._size = work, workers
        self._workers: list[_Worker] = []
        self._deaths: dict[str, int] = {}

    @property
    def free_slots(self) -> int:
        """How many more points it takes at once."""
        return self._size - sum(worker.point is not None for worker in self._workers)

    def submit(self, points: Sequence[DesignPoint]) -> None:
        """Accept points, at most as many as there is capacity for."""
        for point in points:
            worker = next((w for w in self._workers if w.point is None), None)
            if worker is None:
                worker = _Worker(self._work)
                self._workers.append(worker)
            worker.point = point
            self._send(worker, point)

    def completed(self, timeout_s: float) -> list[Outcome]:
        """Return outcomes, after waiting so long for the first.

        Raises:
            RuntimeError: A worker met a defect of ours.
            OutputError: A point cost several workers their lives.
        """
        busy = {w.pipe: w for w in self._workers if w.point is not None}
        found = []
        for pipe in wait(list(busy), timeout_s):
            worker = busy[pipe]  # type: ignore[index]
            try:
                answer = worker.pipe.recv()
            except (EOFError, OSError):
                self._replace(worker)
                continue
            worker.point = None
            if isinstance(answer, str):
                raise RuntimeError(f"a worker failed:\n{answer}")
            found.append(answer)
        return found

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.end()
        self._workers = []

    def _send(self, worker: _Worker, point: DesignPoint) -> None:
        try:
            worker.pipe.send(point)
        except (BrokenPipeError, OSError):
            self._replace(worker)

    def _replace(self, worker: _Worker) -> None:
        """Start a new worker in place of one that died, and resubmit its point."""
        point, code = worker.point, worker.process.wait()
        assert point is not None
        worker.end()
        self._workers.remove(worker)
        deaths = self._deaths[point.key] = self._deaths.get(point.key, 0) + 1
        if deaths >= _MOST_DEATHS:
            why = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise OutputError(
                f"a worker ended ({why}) {deaths} times at the point {dict(point.values)}; memory "
                "may be short: use fewer --workers. Finished points are stored"
            )
        self.submit([point])
