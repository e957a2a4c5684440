"""Constants of the rules of play that both executors share."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["CROWDED_TOLERANCE", "EVENT_KINDS", "SHARING_POLICIES", "EventKind"]


class EventKind(IntEnum):
    """What can happen at an instant; the value is the priority among simultaneous events."""

    END = 0
    WORK = 1  # the latency is over, the work begins
    START = 2


EVENT_KINDS = len(EventKind)

#: A link is crowded when its flows ask for more than this many times its bandwidth. Flows that
#: were made to fill a link exactly may exceed it by rounding, and must not be slowed for that.
CROWDED_TOLERANCE = 1.0 + 1e-9

#: How flows that meet on a crowded link divide it; the position is the code the kernels know.
#: `max-min` is rule 4. `proteus` slows all flows of a link by the factor by which it is asked for
#: too much, and gives what flows leave elsewhere to nobody: bandwidth over number of flows when
#: they are alike, as in the Proteus executor.
SHARING_POLICIES = ("max-min", "proteus")
