"""Searches that run behind the page: start, progress, cancellation."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from wattree.errors import JobError
from wattree.serve.state import PageState
from wattree.serve.workers import Workers

#: Searches at once: more would slow each other and the page.
_MOST: Final = 2
#: A search without a request for so long is cancelled: its page was closed. Browsers let a hidden
#: page ask once a minute, and a busy machine less often than that. [s]
PATIENCE_S: Final = 300.0
#: Finished searches that are remembered.
_KEPT: Final = 20


@dataclass(slots=True)
class RunningPlan:
    """A search.

    Attributes:
        number: Identifier by which the page requests it.
        stage, done, total: How far it is.
        found: Its result as HTML; empty while it runs, or where it failed.
        failure: Why it found nothing; empty while it runs.
    """

    number: str
    stage: str = "starting"
    done: int = 0
    total: int = 1
    found: str = ""
    failure: str = ""
    is_cancelled: bool = False
    asked_s: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        """Whether it found or failed."""
        return bool(self.found or self.failure)


class Plans:
    """All searches of a server.

    Args:
        patience_s: A search without a request for so long is cancelled. [s]
        search: Computes `plan` for a state and files, as `Workers.ask` does; None for processes.
    """

    def __init__(
        self, patience_s: float = PATIENCE_S, search: Callable[..., str] | None = None
    ) -> None:
        self._plans: dict[str, RunningPlan] = {}
        self._lock = threading.Lock()
        self._patience_s = patience_s
        self._workers = Workers(_MOST)
        self._search = search or self._workers.ask

    def start(self, state: PageState, files: Mapping[str, Path]) -> RunningPlan | None:
        """Start a search for a job; None if the maximum number is running."""
        with self._lock:
            running = [plan for plan in self._plans.values() if not plan.is_over]
            if len(running) >= _MOST:
                return None
            over = [number for number, plan in self._plans.items() if plan.is_over]
            for number in over[: max(len(over) - _KEPT, 0)]:
                del self._plans[number]
            made = RunningPlan(secrets.token_urlsafe(9))
            self._plans[made.number] = made
        threading.Thread(target=self._run, args=(made, state, files), daemon=True).start()
        return made

    def ask(self, number: str) -> RunningPlan | None:
        """Return a search; one that no page asks for is cancelled after a while."""
        found = self._plans.get(number)
        if found is not None:
            found.asked_s = time.monotonic()
        return found

    def cancel(self, number: str) -> None:
        """Cancel a search; it ends at its next step."""
        if (found := self._plans.get(number)) is not None:
            found.is_cancelled = True

    def close(self) -> None:
        """Cancel all searches and end their processes: the server ends."""
        for number in list(self._plans):
            self.cancel(number)
        self._workers.close()

    def _run(self, running: RunningPlan, state: PageState, files: Mapping[str, Path]) -> None:
        def progress(stage: str, done: int, total: int) -> None:
            running.stage, running.done, running.total = stage, done, max(total, 1)

        def is_unwanted() -> bool:
            gone = time.monotonic() - running.asked_s > self._patience_s
            return running.is_cancelled or gone

        try:
            running.found = self._search(
                "plan", state, dict(files), report=progress, is_unwanted=is_unwanted
            )
        except JobError as error:
            running.failure = "\n".join(error.problems)
        except Exception as error:  # noqa: BLE001 - the page must hear of a defect, too
            running.failure = str(error) or repr(error)
