"""The processes that measure together: start, query and stop them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from wattree.errors import RunError
from wattree.measure.profile.journal import PointMeasurement
from wattree.measure.profile.points import ProfilePoint
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
        self._workers: list[subprocess.Popen[str]] = []
        self._store = temporary_folder("profile")

    def __enter__(self) -> Self:
        """Start the ranks and wait until all are ready.

        Raises:
            RunError: One could not be started.
        """
        environment = os.environ | {
            "OMP_NUM_THREADS": str(self.threads),
            "MKL_NUM_THREADS": str(self.threads),
        }
        try:
            for rank in range(self.ranks):
                errors = self._reply(rank).open("w", encoding="utf-8")
                worker = subprocess.Popen(
                    [sys.executable, "-m", "wattree.measure.profile.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=environment,
                )
                errors.close()  # the worker has its own handle
                self._workers.append(worker)
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
            self._send(rank, {"point": point.as_json(), "window_s": window_s})
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
                text = Path(f"/proc/{worker.pid}/stat").read_text(encoding="utf-8")
                after_name = text.rpartition(")")[2].split()
                total += (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
        return total

    def _send(self, rank: int, what: dict[str, Any]) -> None:
        stream = self._workers[rank].stdin
        assert stream is not None
        try:
            stream.write(json.dumps(what) + "\n")
            stream.flush()
        except OSError:
            self._gone(rank)

    def _hear(self, rank: int) -> dict[str, Any]:
        worker = self._workers[rank]
        assert worker.stdout is not None
        timer = threading.Timer(_ANSWER_S, worker.kill)
        timer.daemon = True
        timer.start()
        try:
            line = worker.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self._gone(rank)
        found: dict[str, Any] = json.loads(line)
        return found

    def _gone(self, rank: int) -> None:
        worker = self._workers[rank]
        worker.kill()
        code = worker.wait()
        text = self._reply(rank).read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        why = lines[-1].strip() if lines else f"exit code {code}"
        raise RunError(f"rank {rank}", [f"ended while it measured: {why}"])

    def _reply(self, rank: int) -> Path:
        """Return the file for a rank's output other than answers."""
        return Path(self._store.name) / f"rank{rank}.txt"

    def _end(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(OSError):
                if worker.stdin is not None:
                    worker.stdin.close()
        for worker in self._workers:
            try:
                worker.wait(timeout=5)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            if worker.stdout is not None:
                worker.stdout.close()
        self._store.cleanup()
