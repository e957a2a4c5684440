"""Searches that run behind the page: start, progress, cancellation."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import wattree
from wattree.errors import SearchCancelledError, WattreeError
from wattree.job import Job
from wattree.search import Plan

#: Searches at once: more would slow each other and the page.
_MOST: Final = 2
#: A search without a request for so long is cancelled: its page was closed. [s]
PATIENCE_S: Final = 20.0
#: Finished searches that are remembered.
_KEPT: Final = 20


@dataclass(slots=True)
class RunningPlan:
    """A search.

    Attributes:
        number: Identifier by which the page requests it.
        stage, done, total: How far it is.
        plan: What it found; None while it runs, or where it failed.
        failure: Why it found nothing; empty while it runs.
    """

    number: str
    stage: str = "starting"
    done: int = 0
    total: int = 1
    plan: Plan | None = None
    failure: str = ""
    is_cancelled: bool = False
    asked_s: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        """Whether it found or failed."""
        return self.plan is not None or bool(self.failure)


class Plans:
    """All searches of a server."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._plans: dict[str, RunningPlan] = {}
        self._lock = threading.Lock()
        self._patience_s = patience_s

    def start(self, job: Job, *, search: Callable[..., Plan] = wattree.plan) -> RunningPlan | None:
        """Start a search; None if the maximum number is running."""
        with self._lock:
            running = [plan for plan in self._plans.values() if not plan.is_over]
            if len(running) >= _MOST:
                return None
            over = [number for number, plan in self._plans.items() if plan.is_over]
            for number in over[: max(len(over) - _KEPT, 0)]:
                del self._plans[number]
            made = RunningPlan(secrets.token_urlsafe(9))
            self._plans[made.number] = made
        threading.Thread(target=self._run, args=(made, job, search), daemon=True).start()
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

    def cancel_all(self) -> None:
        """Cancel all searches: the server ends."""
        for number in list(self._plans):
            self.cancel(number)

    def _run(self, running: RunningPlan, job: Job, search: Callable[..., Plan]) -> None:
        def progress(stage: str, done: int, total: int) -> None:
            running.stage, running.done, running.total = stage, done, max(total, 1)
            gone = time.monotonic() - running.asked_s > self._patience_s
            if running.is_cancelled or gone:
                raise SearchCancelledError("cancelled")

        try:
            running.plan = search(job, progress=progress)
        except WattreeError as error:
            running.failure = str(error)
        except Exception as error:  # noqa: BLE001 - the page must hear of a defect, too
            running.failure = f"a defect of Wattree: {type(error).__name__}: {error}"
