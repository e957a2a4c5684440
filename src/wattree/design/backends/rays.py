"""A Ray cluster, of many machines or of this one: the only file that knows Ray."""

from __future__ import annotations

from collections.abc import Sequence

from wattree.design.backends.backend import Work
from wattree.design.outcome import Outcome
from wattree.design.points import Point

__all__ = ["Rays"]


class Rays:
    """Evaluates points on a Ray cluster."""

    def __init__(self, work: Work, *, address: str | None, workers: int | None) -> None:
        raise NotImplementedError

    @property
    def room(self) -> int:
        """How many more points it takes at once."""
        raise NotImplementedError

    def submit(self, points: Sequence[Point]) -> None:
        """Take points."""
        raise NotImplementedError

    def completed(self, timeout_s: float) -> list[Outcome]:
        """Return outcomes."""
        raise NotImplementedError

    def close(self) -> None:
        """End."""
