"""Contents of the page for a state, as HTML made of the parts of reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException

import wattree
from wattree.errors import SearchCancelledError, StrategyError, WattreeError
from wattree.frameworks import FRAMEWORKS, written_frameworks
from wattree.predict import check_strategy
from wattree.report.html.views import step_cards
from wattree.serve.choices import choices
from wattree.serve.state import STRATEGY_KEYS, PageState, suggestions
from wattree.serve.worker import defect_in_words, fragment, problems_of

if TYPE_CHECKING:
    from wattree.serve.plans import RunningPlan


#: How often controls look whether figures are computed. [s]
_YIELD_S: Final = 0.002


class Answers:
    """Computes answers for states by the closed form, one at a time: caches are not thread-safe.

    Args:
        simulated: Computes the figures of a state with files where the closed form does not.

    Attributes:
        files: Name → file of what was uploaded.
    """

    def __init__(self, simulated: Callable[..., Mapping[str, Any]]) -> None:
        self.files: dict[str, Path] = {}
        self._lock = threading.Lock()
        self._urgent: list[None] = []
        self._simulated = simulated

    def page(self, state: PageState, compared: Sequence[str], ignored: Sequence[str]) -> str:
        """Return the whole page.

        Args:
            compared: Addresses of states to lay side by side.
            ignored: What the address of the page has and no control takes.
        """
        return fragment(
            "page.html.j2",
            values=state.values,
            strategy_keys=(*STRATEGY_KEYS, "more"),
            ignored=ignored,
            known=suggestions(),
            uploaded=list(self.files),
            controls=fragment("controls.html.j2", **self._controls(state)),
            figures=self.figures(state),
            comparison=self.comparison(compared) if compared else "",
            frameworks=[FRAMEWORKS[name] for name in written_frameworks()],
        )

    def controls(self, state: PageState, is_unwanted: Callable[[], bool]) -> str:
        """Return the controls of the strategy, with the values that are legal for the job.

        Raises:
            SearchCancelledError: They are unwanted: another control was moved since.
        """
        return fragment("controls.html.j2", **self._controls(state, is_unwanted))

    @contextmanager
    def _urgently(self) -> Iterator[None]:
        """Hold the lock, before all controls: locks are not fair."""
        self._urgent.append(None)
        try:
            with self._lock:
                yield
        finally:
            self._urgent.pop()

    def _controls(
        self, state: PageState, is_unwanted: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        each = choices(state, self.files)
        while True:
            while self._urgent:
                time.sleep(_YIELD_S)
            if is_unwanted():
                raise SearchCancelledError("cancelled")
            with self._lock:
                name, values = next(each, ("", []))
            if not name:
                return {"values": state.values, "choices": found}
            found[name] = values

    def check(self, state: PageState) -> None:
        """Raise an error for a state that is no job.

        Raises:
            WattreeError: Every problem is listed.
        """
        with self._urgently():
            state.job(self.files)

    def figures(self, state: PageState) -> str:
        """Return the figures of a state by the closed form, or its problems."""
        return _figures_part(self._figures_or_problems(state))

    def problems(self, error: WattreeError) -> str:
        """Return what is wrong, as a part of the page."""
        return _figures_part({"problems": self._problems(error)})

    def _problems(self, error: WattreeError) -> list[str]:
        return [self._in_words(line) for line in problems_of(error)]

    def _in_words(self, text: str) -> str:
        """Return a message that calls uploaded files as their users do."""
        for label, path in self.files.items():
            text = text.replace(str(path), label)
        return text.removeprefix("the page: ")

    def _figures_or_problems(self, state: PageState) -> Mapping[str, Any]:
        """Return `cards` with `warnings` and `notes` on them, or `problems`."""
        try:
            with self._urgently():
                job = state.job(self.files)
                if isinstance(job.strategy, str):
                    return {"problems": ("Choose a strategy, or press Plan to find one.",)}
                figures = _estimated(job)
                idle = () if figures is None else check_strategy(job)
            if figures is None:
                figures = self._simulated(state, self.files)
            warnings = [self._in_words(line) for line in (*job.warnings, *idle)]
            return {"cards": step_cards(figures), "warnings": warnings, "notes": job.assumed}
        except WattreeError as error:
            return {"problems": self._problems(error)}
        except HTTPException as error:  # a defect that a worker met
            return {"problems": [error.detail]}
        except Exception as error:  # noqa: BLE001 - without the page, no one can choose otherwise
            return {"problems": [defect_in_words(error)]}

    def plan(self, running: RunningPlan) -> str:
        """Return the progress of a search, or its result."""
        failure = self._in_words(running.failure)
        return fragment("plan_list.html.j2", running=running, failure=failure)

    def comparison(self, queries: Sequence[str]) -> str:
        """Return up to four states side by side; one that cannot be predicted says why."""
        states = [PageState.known_of(dict(parse_qsl(query)))[0] for query in queries]
        rows = []
        for name in dict.fromkeys(name for state in states for name in state.values):
            values = [state.values.get(name, "default") for state in states]
            if len(set(values)) > 1:
                rows.append((name.replace("_", " "), values))
        figures = [self._compared(state) for state in states]
        shown = dict.fromkeys(name for each in figures for name in each)
        rows += [(name, [each.get(name, "–") for each in figures]) for name in shown]
        return fragment("comparison.html.j2", queries=queries, rows=rows)

    def _compared(self, state: PageState) -> dict[str, str]:
        """Return name → value of the figures of a state."""
        found = self._figures_or_problems(state)
        shown = {card.name.partition(",")[0]: card.value for card in found.get("cards", ())}
        return shown or {"Cannot be predicted": "; ".join(found["problems"])}


def _figures_part(found: Mapping[str, Any]) -> str:
    parts = dict.fromkeys(("cards", "warnings", "notes", "problems"), ())
    return fragment("figures.html.j2", **{**parts, **found})


def _estimated(job: wattree.Job) -> Mapping[str, Any] | None:
    """Return the figures by the closed form; None where it knows too little."""
    try:
        return wattree.estimate(job).as_json()
    except StrategyError as error:
        if "closed form" not in str(error):
            raise
        return None
