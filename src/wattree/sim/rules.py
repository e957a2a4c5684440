"""Constants of the execution rules that both executors share."""

from __future__ import annotations

from enum import IntEnum


class EventKind(IntEnum):
    """Kinds of events; the value is the priority among simultaneous events."""

    END = 0
    WORK = 1  # the latency is over, the work begins
    START = 2


EVENT_KINDS = len(EventKind)

#: A link is crowded when its flows ask for more than this many times its bandwidth. Flows that
#: were made to fill a link exactly may exceed it by rounding, and must not be slowed for that.
CROWDED_TOLERANCE = 1.0 + 1e-9

#: What happens where flows meet on a link. `max-min` is rule 4. `proteus` is what was published for
#: the Proteus executor: the number of flows divides, and overlap slows whole tasks. `none` lets
#: every flow run as if it were alone.
SHARING_POLICIES = ("max-min", "proteus", "none")
