"""Rates of connections with fixed windows through first-in-first-out queues.

A connection has one window of data on its way, so its rate is the window over its round trip: the
waits in the queues of the links that its data crosses, and of those that its acknowledgements come
back on, where they wait behind the data of others. A link that is not full has no queue. All
windows are equal, so their size cancels (Mo and Walrand, "Fair end-to-end window-based congestion
control", IEEE/ACM Transactions on Networking 8(5), 2000, with queues on both ways).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Floats

#: Round trip over empty queues, in windows at the rate of the fastest link: what is not a queue.
_EMPTY_TRIP = 0.02
#: Queues grow and shrink by their link's load to this power, this often: they then stand still.
_DAMPING, _ROUNDS = 0.5, 300
#: A link that carries this part of what it can is full.
_FULL = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Links that a connection's data crosses, and that its acknowledgements do."""

    data: tuple[int, ...]
    acknowledgements: tuple[int, ...]


def window_rates(ways: tuple[Way, ...], bytes_per_s: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the rate of each connection [B/s], and whether a full link holds it up.

    The others are held up by their window alone: they leave a part of every link of theirs free.

    Args:
        ways: One for each connection that is under way.
        bytes_per_s: What each link carries. [B/s]
    """
    used = sorted({link for way in ways for link in (*way.data, *way.acknowledgements)})
    data, back = (np.zeros((len(ways), len(used))) for _ in range(2))
    for row, way in enumerate(ways):
        data[row, [used.index(link) for link in way.data]] = 1.0
        back[row, [used.index(link) for link in way.acknowledgements]] = 1.0
    capacity, fastest = bytes_per_s[used], float(bytes_per_s[used].max())
    wait = data.any(axis=0) * 1.0  # in a link's queue, in windows at the fastest link's rate
    for _ in range(_ROUNDS):
        rate = fastest / (_EMPTY_TRIP + (data + back) @ wait)
        load = rate @ data / capacity
        wait = wait * load**_DAMPING
    return rate, data @ (load > _FULL) > 0
