"""A pool of single-threaded processes on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import wait

from wattree.child import PipedProcess
from wattree.design.backends.backend import StudyWork
from wattree.design.outcome import Outcome
from wattree.design.points import DesignPoint
from wattree.errors import OutputError

#: Workers that one point may cost before it is given up.
_MOST_DEATHS = 2


class _Worker(PipedProcess):
    """A process and the point that it evaluates."""

    def __init__(self, work: StudyWork) -> None:
        super().__init__("wattree.design.backends.worker")
        self.point: DesignPoint | None = None
        self.pipe.send(work)


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
        point, why = worker.point, worker.ending()
        assert point is not None
        worker.end()
        self._workers.remove(worker)
        deaths = self._deaths[point.key] = self._deaths.get(point.key, 0) + 1
        if deaths >= _MOST_DEATHS:
            raise OutputError(
                f"a worker ended ({why}) {deaths} times at the point {dict(point.values)}; memory "
                "may be short: use fewer --workers. Finished points are stored"
            )
        self.submit([point])
