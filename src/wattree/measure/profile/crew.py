"""The processes that measure together: start, query and stop them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from wattree.child import PipedProcess
from wattree.errors import RunError
from wattree.measure.profile.journal import PointMeasurement
from wattree.measure.profile.points import ProfilePoint
from wattree.temporary import temporary_folder

#: Longer than any point takes on a busy machine. [s]
_ANSWER_S = 180.0


class Crew:
    """Ranks that measure the same point at the same time.

    Args:
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
        try:
            for rank in range(self.ranks):
                with self._output(rank).open("w", encoding="utf-8") as output:
                    self._workers.append(
                        PipedProcess(
                            "wattree.measure.profile.worker", threads=self.threads, output=output
                        )
                    )
                start = {
                    "rank": rank,
                    "ranks": self.ranks,
                    "threads": self.threads,
                    "device": f"cuda:{rank}" if self.accelerator else "cpu",
                    "store": str(Path(self._store.name) / "store"),
                }
                self._send(rank, start)
            ready = [self._hear(rank) for rank in range(self.ranks)]
        except BaseException:
            self._end()
            raise
        self.resident_bytes = max(float(each["resident_bytes"]) for each in ready)
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
        for answer in answers:
            if "error" in answer:
                return str(answer["error"])
        return PointMeasurement(
            wall_s=tuple(float(answer["wall_s"]) for answer in answers),
            busy_s=tuple(float(answer["busy_s"]) for answer in answers),
        )

    def cpu_s(self) -> float:
        """Return the processor time that the ranks have used. [s]"""
        total = 0.0
        for worker in self._workers:
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = Path(f"/proc/{worker.process.pid}/stat").read_text(encoding="utf-8")
                after_name = text.rpartition(")")[2].split()
                total += (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
        return total

    def _send(self, rank: int, what: object) -> None:
        try:
            self._workers[rank].pipe.send(what)
        except OSError:
            self._gone(rank)

    def _hear(self, rank: int) -> dict[str, Any]:
        pipe = self._workers[rank].pipe
        try:
            if not pipe.poll(_ANSWER_S):
                self._workers[rank].process.kill()
            found: dict[str, Any] = pipe.recv()
        except (EOFError, OSError):
            self._gone(rank)
        return found

    def _gone(self, rank: int) -> NoReturn:
        why = self._workers[rank].ending()
        text = self._output(rank).read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        raise RunError(f"rank {rank}", [f"ended while it measured: {lines[-1] if lines else why}"])

    def _output(self, rank: int) -> Path:
        """Return the file for what a rank prints."""
        return Path(self._store.name) / f"rank{rank}.txt"

    def _end(self) -> None:
        for worker in self._workers:
            worker.end()
        self._store.cleanup()
