"""Contents of the page for a state, as HTML made of the parts of reports."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode

import wattree
from wattree.errors import JobError, StrategyError, WattreeError
from wattree.frameworks import FRAMEWORKS, written_frameworks, zipped_recipe
from wattree.report.html.card import Card
from wattree.report.html.templates import rendered
from wattree.report.html.views import plan_view, step_cards, step_view
from wattree.search import with_memory_fixes
from wattree.serve.state import PageState, choices, suggestions

if TYPE_CHECKING:
    from wattree.predict import Prediction
    from wattree.serve.plans import RunningPlan

#: Files of the page, and a part of it as HTML.
PAGE: Final = Path(__file__).with_name("page")
fragment: Final = partial(rendered, folder=PAGE)
#: Predictions that are remembered, for the report of a step that was just shown.
_REMEMBERED: Final = 4


class Answers:
    """Computes answers for states, one at a time: the shared caches are not thread-safe.

    Attributes:
        files: Name → file of what was uploaded.
    """

    def __init__(self) -> None:
        self.files: dict[str, Path] = {}
        self._lock = threading.Lock()
        self._simulated = lru_cache(maxsize=_REMEMBERED)(self._simulate)

    def page(self, state: PageState, compared: Sequence[str], ignored: Sequence[str]) -> str:
        """Return the whole page.

        Args:
            state: Of the controls.
            compared: Addresses of states to lay side by side.
            ignored: What the address of the page has and no control takes.
        """
        return fragment(
            "page.html.j2",
            values=state.values,
            ignored=ignored,
            known=suggestions(),
            uploaded=list(self.files),
            controls=fragment("controls.html.j2", **self._controls(state)),
            figures=self.figures(state),
            comparison=self.comparison(compared) if compared else "",
            frameworks=[FRAMEWORKS[name] for name in written_frameworks()],
        )

    def controls(self, state: PageState) -> str:
        """Return the controls of the strategy, with the values that are legal for the job."""
        return fragment("controls.html.j2", **self._controls(state))

    def _controls(self, state: PageState) -> dict[str, Any]:
        with self._lock:
            return {"values": state.values, "choices": choices(state, self.files)}

    def figures(self, state: PageState) -> str:
        """Return the figures of a state by the closed form, or its problems."""
        cards, notes, problems = self._figures_or_problems(state)
        return fragment("figures.html.j2", cards=cards, problems=problems, notes=notes)

    def problems(self, error: WattreeError) -> str:
        """Return what is wrong, as a part of the page."""
        return fragment("figures.html.j2", cards=(), problems=self._problems(error), notes=())

    def _problems(self, error: WattreeError) -> list[str]:
        return [self._in_words(line) for line in problems_of(error)]

    def _in_words(self, text: str) -> str:
        """Return a message that calls uploaded files as their users do."""
        for label, path in self.files.items():
            text = text.replace(str(path), label)
        return text.removeprefix("the page: ")

    def _figures_or_problems(
        self, state: PageState
    ) -> tuple[Sequence[Card], Sequence[str], Sequence[str]]:
        """Return cards, notes on them, and problems, of which there are some without cards."""
        try:
            with self._lock:
                job = state.job(self.files)
                if isinstance(job.strategy, str):
                    return (), (), ("Choose a strategy, or press Plan to find one.",)
                return step_cards(self._figures(state, job)), (*job.assumed, *job.warnings), ()
        except WattreeError as error:
            return (), (), self._problems(error)

    def _figures(self, state: PageState, job: wattree.Job) -> Mapping[str, Any]:
        """Return the figures by the closed form; by simulation where it knows too little."""
        try:
            return wattree.estimate(job).as_json()
        except StrategyError as error:
            if "closed form" not in str(error):
                raise
            return self._simulated(*self._key(state)).result.as_json()

    def step(self, state: PageState) -> str:
        """Return everything about the step of a state.

        Raises:
            WattreeError: It cannot be simulated.
        """
        prediction = self.predicted(state)
        with self._lock:
            view = step_view(prediction)
            memory = prediction.result.memory
            warning = "" if memory.fits else "It does not fit: the figures are of an ideal device."
            return fragment("step.html.j2", step=view, warning=warning)

    def framework(self, state: PageState, name: str) -> bytes:
        """Return the files by which a framework starts the job of a state, zipped.

        Raises:
            WattreeError: There is no such framework, or it cannot express the job.
        """
        with self._lock:
            return zipped_recipe(state.job(self.files), name)

    def predicted(self, state: PageState) -> Prediction:
        """Return the simulated step of a state.

        Raises:
            WattreeError: It cannot be simulated.
        """
        with self._lock:
            return self._simulated(*self._key(state))

    def _key(self, state: PageState) -> tuple[Any, Any]:
        return tuple(sorted(state.values.items())), tuple(sorted(self.files.items()))

    def _simulate(
        self, values: tuple[tuple[str, str], ...], files: tuple[tuple[str, Path], ...]
    ) -> Prediction:
        job = PageState(dict(values)).job(dict(files))
        return with_memory_fixes(job, wattree.simulate(job))

    def plan(self, running: RunningPlan, state: PageState) -> str:
        """Return the progress of a search, or its result, each strategy with its address."""
        view, links = None, []
        if running.plan is not None:
            view = plan_view(running.plan)
            links = [
                urlencode(state.with_options(idea[0].options).values) for idea in running.plan.ideas
            ]
        failure = self._in_words(running.failure)
        return fragment(
            "plan_list.html.j2", running=running, failure=failure, plan=view, links=links
        )

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
        cards, _, problems = self._figures_or_problems(state)
        shown = {card.name.partition(",")[0]: card.value for card in cards}
        return shown or {"Cannot be predicted": "; ".join(problems)}


def problems_of(error: WattreeError) -> list[str]:
    """Return what is wrong, one line each."""
    if isinstance(error, JobError | StrategyError):
        return list(error.problems)
    lines = [line.strip() for line in str(error).splitlines()]
    return [line for line in lines if line and not line.endswith(" problems:")]
