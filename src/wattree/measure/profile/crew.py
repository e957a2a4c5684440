"""The processes that measure together: start, query and stop them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from wattree.child import PipedProcess
from wattree.errors import RunError
from wattree.measure.profile.journal import PointMeasurement
from wattree.measure.profile.points import ProfilePoint
from wattree.process import processor_s
from wattree.temporary import temporary_folder

#: Longer than any point takes on a busy machine. [s]
_ANSWER_S = 180.0


class Crew:
    """Ranks that measure the same point at the same time.

    Args:
        ranks: Processes.
        threads: Of each, for computing.
        accelerator: Whether each has a GPU of its own.
    """

    def __init__(self, *, ranks: int, threads: int, accelerator: bool) -> None:
        self.ranks, self.threads, self.accelerator = ranks, threads, accelerator
        self.resident_bytes = 0.0
        self._workers: list[PipedProcess] = []
        self._store = temporary_folder("profile")

    def __enter__(self) -> Self:
        """Start the ranks and wait until all are ready.

        Raises:
            RunError: One could not be started.
        """
        store = str(Path(self._store.name) / "store")
        try:
            for rank in range(self.ranks):
                with self._printed(rank).open("w", encoding="utf-8") as printed:
                    worker = PipedProcess(
                        "wattree.measure.profile.worker", threads=self.threads, printed=printed
                    )
                self._workers.append(worker)
                device = f"cuda:{rank}" if self.accelerator else "cpu"
                self._send(rank, (rank, self.ranks, self.threads, device, store))
            self.resident_bytes = max([self._hear(rank) for rank in range(self.ranks)])
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the ranks."""
        self._end()

    def seconds(self, point: ProfilePoint, window_s: float) -> PointMeasurement | str:
        """Return the times of one call on every rank, or why the machine cannot run it.

        Raises:
            RunError: A rank is gone, or does not answer.
        """
        for rank in range(self.ranks):
            self._send(rank, (point, window_s))
        answers = [self._hear(rank) for rank in range(self.ranks)]
        if faults := [each for each in answers if isinstance(each, str)]:
            return faults[0]
        wall_s, busy_s = zip(*answers, strict=True)
        return PointMeasurement(wall_s=wall_s, busy_s=busy_s)

    def cpu_s(self) -> float:
        """Return the processor time that the ranks have used. [s]"""
        return sum(processor_s(worker.process.pid) or 0.0 for worker in self._workers)

    def _send(self, rank: int, what: Any) -> None:
        try:
            self._workers[rank].pipe.send(what)
        except OSError as error:
            raise self._gone(rank) from error

    def _hear(self, rank: int) -> Any:
        with contextlib.suppress(EOFError, OSError):
            if self._workers[rank].pipe.poll(_ANSWER_S):
                return self._workers[rank].pipe.recv()
        raise self._gone(rank)

    def _gone(self, rank: int) -> RunError:
        worker = self._workers[rank]
        worker.process.kill()
        how = worker.ending()
        text = self._printed(rank).read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return RunError(f"rank {rank}", [f"ended while it measured: {lines[-1] if lines else how}"])

    def _printed(self, rank: int) -> Path:
        return Path(self._store.name) / f"rank{rank}.txt"

    def _end(self) -> None:
        for worker in self._workers:
            worker.end()
        self._store.cleanup()
