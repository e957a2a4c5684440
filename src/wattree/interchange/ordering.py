"""Order of the units on streams, for a trace that does not state it.

Streams of an execution graph take their tasks in a fixed order, a trace only says what waits for
what. So units are taken as a device would meet them: by the time at which they become ready, each
lasting as long as it does alone, the lower node number first where times are equal.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from wattree.errors import JobError
from wattree.interchange.matching import Unit

#: Nodes of a cycle that a message shows.
_SHOWN = 8


def taken_order(
    units: Sequence[Unit], streams: Sequence[Sequence[int]], durations_s: Sequence[float]
) -> list[int]:
    """Return the units in stream order; each follows its dependencies.

    Args:
        streams: That each unit occupies.
        durations_s: Of each unit alone. [s]

    Raises:
        JobError: Units wait for each other.
    """
    after: list[list[int]] = [[] for _ in units]
    waits = [len(unit.before) for unit in units]
    for index, unit in enumerate(units):
        for before in unit.before:
            after[before].append(index)
    ready_s = [0.0] * len(units)
    free_s: dict[int, float] = {}
    numbers = [unit.nodes[0].id for unit in units]
    queue = [(0.0, numbers[index], index) for index, count in enumerate(waits) if not count]
    heapq.heapify(queue)
    order: list[int] = []
    while queue:
        start_s, _, index = heapq.heappop(queue)
        order.append(index)
        for stream in streams[index]:
            start_s = max(start_s, free_s.get(stream, 0.0))
        end_s = start_s + durations_s[index]
        for stream in streams[index]:
            free_s[stream] = end_s
        for then in after[index]:
            ready_s[then] = max(ready_s[then], end_s)
            waits[then] -= 1
            if not waits[then]:
                heapq.heappush(queue, (ready_s[then], numbers[then], then))
    if len(order) < len(units):
        raise _cycle_error(units, waits)
    return order


def _cycle_error(units: Sequence[Unit], waits: Sequence[int]) -> JobError:
    """Return the error that names units that wait for each other.

    Every unit that never came waits for another such one, so walking back meets a cycle.
    """
    stuck = {index for index, count in enumerate(waits) if count}
    walked: dict[int, None] = {}
    index = min(stuck)
    while index not in walked:
        walked[index] = None
        index = min(units[index].before & stuck)
    cycle = list(walked)[list(walked).index(index) :]
    shown = [units[i].nodes[0].label for i in cycle[:_SHOWN]]
    rest = [f"… {len(cycle) - _SHOWN} more"] if len(cycle) > _SHOWN else []
    first = units[cycle[0]].nodes[0]
    return JobError(
        first.file,
        [
            f"found {len(stuck)} nodes that wait for each other, which never start: "
            f"{' → '.join([*shown, *rest, shown[0]])} (each waits for the next); "
            "expected dependencies without a cycle, and one order of collectives on all ranks"
        ],
    )
