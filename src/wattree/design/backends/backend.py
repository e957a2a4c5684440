"""The interface of all backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wattree.design.evaluate import Evaluator
from wattree.design.outcome import Outcome
from wattree.design.points import DesignPoint
from wattree.design.study import Study
from wattree.graph import ModelGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyWork:
    """What a worker needs before its first point; complete, so that it reads no files.

    Attributes:
        study: The study, with what its hardware files hold.
        models: Model graphs of its workloads, where no axis changes them.
    """

    study: Study
    models: Mapping[str, ModelGraph] = field(default_factory=dict)

    def evaluator(self) -> Evaluator:
        """Return what evaluates points of the study."""
        return Evaluator(self.study, dict(self.models))


class Backend(Protocol):
    """Evaluates points somewhere. Outcomes are the same everywhere."""

    @property
    def free_slots(self) -> int:
        """Number of points that it can accept now."""

    def submit(self, points: Sequence[DesignPoint]) -> None:
        """Accept points, at most as many as there is capacity for."""

    def completed(self, timeout_s: float) -> list[Outcome]:
        """Return outcomes that were not returned yet, after waiting so long for the first."""

    def close(self) -> None:
        """Stop, and drop the points in flight."""


class Here:
    """Evaluates in this process, a point at a time."""

    def __init__(self, work: StudyWork) -> None:
        self._evaluator, self._points = work.evaluator(), list[DesignPoint]()

    @property
    def free_slots(self) -> int:
        """How many more points it takes at once."""
        return 1 - len(self._points)

    def submit(self, points: Sequence[DesignPoint]) -> None:
        """Take a point."""
        self._points += points

    def completed(self, timeout_s: float) -> list[Outcome]:  # noqa: ARG002 - it never waits
        """Return the outcome of the point that was taken."""
        points, self._points = self._points, []
        return [self._evaluator.outcome(point) for point in points]

    def close(self) -> None:
        """Drop what was taken."""
        self._points = []
