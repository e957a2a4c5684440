"""Worker processes of the server: what they are asked, in turns, and how it is abandoned."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from starlette.exceptions import HTTPException

from wattree.child import PipedProcess
from wattree.errors import JobError, SearchCancelledError

#: How often it is looked whether an answer is still wanted. [s]
_LOOK_S: Final = 0.1
#: Answers of one process; then a new one takes its place, as its caches grow.
_MOST_ANSWERS: Final = 40


class _Worker(PipedProcess):
    """A process and how much it has answered."""

    def __init__(self) -> None:
        super().__init__("wattree.serve.worker")
        self.answers = 0


class Workers:
    """Processes that are started when needed and reused.

    Args:
        most: Processes that compute at once.
        waiting: Requests that may wait for one of them.
    """

    def __init__(self, most: int, waiting: int = 0) -> None:
        self._turns, self._lock = threading.Semaphore(most), threading.Lock()
        self._room, self._inside = most + waiting, 0
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._is_closed = False

    def warm(self) -> None:
        """Start a process, so that the first answer need not wait for its imports."""
        self._idle.append(_Worker())

    def ask(
        self,
        name: str,
        *arguments: Any,
        is_unwanted: Callable[[], bool] = lambda: False,
        report: Callable[..., None] = lambda *_: None,
    ) -> Any:
        """Return the answer of a function of `worker.py`.

        Args:
            is_unwanted: Whether no one waits for the answer any more; its process is ended then.
            report: Called with what the function reports of its progress.

        Raises:
            JobError: It cannot be answered, or too many wait.
            SearchCancelledError: It is unwanted.
            HTTPException: A defect of ours, of which the worker printed all that it knows.
        """
        with self._lock:
            if self._inside >= self._room:
                words = f"the server is busy with {self._inside} requests; try again in a minute"
                raise JobError("the page", [words])
            self._inside += 1
        try:
            kind, value = self._in_turn((name, arguments), is_unwanted, report)
        finally:
            with self._lock:
                self._inside -= 1
        if kind == "mistake":
            raise JobError("the page", value)
        if kind == "defect":
            raise HTTPException(500, value)
        return value

    def close(self) -> None:
        """End all processes; who waits for one sees it within a moment."""
        with self._lock:
            self._is_closed = True
            for child in self._idle:
                child.end()
            for child in self._busy:
                child.process.kill()

    def _in_turn(
        self, asked: Any, is_unwanted: Callable[[], bool], report: Callable[..., None]
    ) -> tuple[str, Any]:
        while not self._turns.acquire(timeout=_LOOK_S):
            _check_wanted(is_unwanted)
        try:
            child = self._taken()
            answer = None
            try:
                answer = _answer(child, asked, is_unwanted, report)
            finally:
                self._put_back(child, is_whole=answer is not None)
            return answer
        finally:
            self._turns.release()

    def _taken(self) -> _Worker:
        """Return a process that waits, or a new one.

        Raises:
            SearchCancelledError: The server ends.
        """
        with self._lock:
            _check_wanted(lambda: self._is_closed)
            while self._idle and self._idle[-1].process.poll() is not None:
                self._idle.pop().end()
            child = self._idle.pop() if self._idle else _Worker()
            self._busy.add(child)
            return child

    def _put_back(self, child: _Worker, *, is_whole: bool) -> None:
        child.answers += 1
        with self._lock:
            self._busy.remove(child)
            if is_whole and child.answers < _MOST_ANSWERS and not self._is_closed:
                self._idle.append(child)
            else:
                child.end()


def _answer(
    child: _Worker, asked: Any, is_unwanted: Callable[[], bool], report: Callable[..., None]
) -> tuple[str, Any]:
    try:
        child.pipe.send(asked)
        while True:
            while not child.pipe.poll(_LOOK_S):
                _check_wanted(is_unwanted)
            kind, value = child.pipe.recv()
            if kind != "progress":
                return kind, value
            _check_wanted(is_unwanted)
            report(*value)
    except (EOFError, OSError) as error:
        words = f"its process ended ({child.ending()}); memory may be short. Try again"
        raise JobError("the page", [words]) from error


def _check_wanted(is_unwanted: Callable[[], bool]) -> None:
    if is_unwanted():
        raise SearchCancelledError("cancelled")
