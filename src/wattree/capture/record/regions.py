"""Checkpointed regions: their operators, and the forward work that backward repeats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from wattree.capture.record.private import current_node_sequence, watching_checkpoints
from wattree.capture.record.tracker import Again, Tracker


class Regions:
    """Numbers the checkpointed regions of a run, reentrant and other ones."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.numbers: dict[int, int] = {}  # id of a frame or context → region
        self.live: list[object] = []  # so that no id is given twice

    def watched(self) -> AbstractContextManager[None]:
        """Return a context in which regions are reported to the tracker."""
        return watching_checkpoints(self._forward, self._again)

    @contextmanager
    def _forward(self, key: object) -> Iterator[None]:
        tracker = self.tracker
        if not tracker.forward:  # a region inside one that runs again: its operators are known
            self.live.append(key)
            yield
            return
        self.live.append(key)
        number = self.numbers.setdefault(id(key), len(self.numbers))
        # The innermost region counts, as it is the one whose operators backward runs again.
        before, tracker.region = tracker.region, number
        try:
            yield
        finally:
            tracker.region = before

    @contextmanager
    def _again(self, key: object) -> Iterator[None]:
        tracker = self.tracker
        number = self.numbers.get(id(key))
        of_region = [o for o in tracker.run.operators if o.region == number]
        again = Again(operators=of_region, node=current_node_sequence())
        tracker.again.append(again)
        try:
            yield
        finally:
            tracker.again.remove(again)
