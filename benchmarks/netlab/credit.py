"""What rested links pass at once: the token buckets of the emulated links.

A link that carries less than its rate saves up credit, to a limit, and spends it on what comes
next. So a message that finds its path at rest takes less time than its bytes at the link's rate,
and the short waits between dependent messages cost a busy link next to nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from benchmarks.netlab.graph import Built
from benchmarks.netlab.machine import Machine
from wattree.trace import Trace


class _Passage(NamedTuple):
    """A message on one link: some of it at once, the rest evenly until its end."""

    begin_s: float
    end_s: float
    at_once_bytes: float
    evenly_bytes: float

    def bytes_between(self, from_s: float, to_s: float) -> float:
        """Return what passes in an interval, its ends included. [B]"""
        at_once_bytes = self.at_once_bytes if from_s <= self.begin_s <= to_s else 0.0
        shared_s = min(self.end_s, to_s) - max(self.begin_s, from_s)
        if shared_s <= 0.0:
            return at_once_bytes
        return at_once_bytes + shared_s / (self.end_s - self.begin_s) * self.evenly_bytes


def credits_of(built: Built, trace: Trace, machine: Machine) -> Mapping[int, float]:
    """Return for each message what its path passes at once, given when links were busy. [B]

    A link's credit when a message begins is its limit less what passed in the time that it takes
    to save up the limit, which is exact for links that are either full or at rest. The first of
    messages that begin together gets all.
    """
    limit_bytes = machine.credit_bytes
    graph = built.graph
    rates = graph.link_bandwidth_bytes_per_s
    firsts = np.array([transit.tasks[0] for transit in built.transits], dtype=np.int64)
    begins = trace.start_s[firsts] + graph.latency_s[firsts]
    recent: dict[int, deque[_Passage]] = {}
    credit_bytes: dict[int, float] = {}
    for index in np.argsort(begins, kind="stable"):
        transit, begin_s = built.transits[index], float(begins[index])
        end_s = float(trace.end_s[transit.tail])
        credit = min(limit_bytes, transit.size_bytes)
        for link in transit.way.data:
            window_s = limit_bytes / float(rates[link])
            passed = recent.setdefault(link, deque())
            while passed and passed[0].end_s <= begin_s - window_s:
                passed.popleft()
            used_bytes = sum(one.bytes_between(begin_s - window_s, begin_s) for one in passed)
            credit = min(credit, limit_bytes - used_bytes)
        credit = max(0.0, credit)
        credit_bytes[int(index)] = credit
        for link in transit.way.data:
            # The trace was executed with the credit of before, so that is what did not pass evenly.
            evenly_bytes = transit.size_bytes - transit.credit_bytes
            recent[link].append(_Passage(begin_s, end_s, credit, evenly_bytes))
    return credit_bytes
