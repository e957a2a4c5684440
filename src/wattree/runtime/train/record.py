"""Records the spans of a rank in the last steps, for the timeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wattree.measure.stages.timeline import StageClock, Timeline

#: Steps that a timeline shows.
STORED_STEPS = 3


@dataclass(frozen=True, slots=True)
class Span:
    """Something that a rank did, or waited for.

    Attributes:
        kind: `phase`, `materials`, `communicating` (at work) or `waiting` (for communication).
        what: `forward`, `backward`, `optimizer`, or the name of a layer or a collective.
        begin_s, end_s: On the rank's clock. [s]
    """

    kind: str
    what: str
    begin_s: float
    end_s: float


class SpanRecorder:
    """Keeps the spans of the last steps.

    Args:
        timeline: That of the stages; it is listened to.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._clock: StageClock = timeline.clock
        self._steps: deque[list[tuple[str, str, Any, Any]]] = deque([[]], maxlen=STORED_STEPS + 1)
        timeline.listener = self._heard

    def mark(self) -> Any:
        """Return a mark of now."""
        return self._clock.mark()

    def phase(self, what: str, begin: Any) -> Any:
        """Note a phase that ends now; return the mark of its end."""
        end = self.mark()
        self._steps[-1].append(("phase", what, begin, end))
        return end

    def seconds(self, mark: Any) -> float:
        """Return when a mark was, on this rank's clock. [s]"""
        return self._clock.seconds(mark)

    def next_step(self) -> None:
        """Begin the spans of another step."""
        self._steps.append([])

    def steps(self) -> list[list[Span]]:
        """Return the spans of the last whole steps, in order; all marks must be past."""
        seconds = self._clock.seconds
        return [
            [Span(kind, what, seconds(begin), seconds(end)) for kind, what, begin, end in step]
            for step in list(self._steps)[:-1]
        ]

    def _heard(self, stage: str, what: str, begin: Any, end: Any, *, exposed: bool) -> None:
        if stage == "communicating":
            self._steps[-1].append(("waiting" if exposed else stage, what, begin, end))
        elif stage == "materials" and exposed:
            self._steps[-1].append((stage, "samples", begin, end))


class GroupWatch:
    """Labels the collectives of layers."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.mark: Callable[[], Any] = timeline.clock.mark

    def waited(self, place: str, begun: Any, since: Any, until: Any) -> None:
        """Add a collective, from its start, and the part of it that was waited for."""
        self._timeline.add("communicating", begun, until, exposed=False, what=place)
        self._timeline.add("communicating", since, until, exposed=True, what=place)
