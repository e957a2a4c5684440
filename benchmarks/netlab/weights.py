"""How much of a crowded link a flow takes besides others: weights of max-min shares.

`fair` links serve the pairs of hosts in turn, so flows of one pair share one turn. On `fifo` links
a flow's share is its part of the queue. A connection has a fixed window, which waits in front of
the links that hold it up: where it meets others on two busy links, half of it waits at each, and
it gets there half of what a flow gets whose whole window waits at one link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.netlab.graph import Built
from wattree.trace import Trace

#: A link is busy if it carries more than this part of what it can: acknowledgements and latencies
#: keep a full link a little below 1.
_BUSY = 0.95
#: Weights nearer to 1 than this change nothing that could be measured.
_NEGLIGIBLE = 0.02
#: Transfers of no bytes take no time; their rate is none, whatever it is divided by. [s]
_SHORTEST_S = 1e-12
#: What a path crosses before its first link.
_NOWHERE = -1

Floats = NDArray[np.float64]


def weights_of(built: Built, trace: Trace, *, queueing: str) -> Mapping[int, float]:
    """Return the weight of each transfer that does not have weight 1, given when all of them ran.

    Args:
        built: The graph.
        trace: How it was executed last.
        queueing: `fair` or `fifo`.
    """
    tasks, transits = _transfers(built)
    begin_s = trace.start_s[tasks] + built.graph.latency_s[tasks]
    end_s = np.maximum(begin_s, trace.end_s[tasks])
    bytes_per_s = built.graph.link_traffic_bytes[tasks] / np.maximum(end_s - begin_s, _SHORTEST_S)
    spans = _Spans(begin_s=begin_s, end_s=end_s, rate=bytes_per_s)
    weigh = _fifo_weights if queueing == "fifo" else _fair_weights
    weights = weigh(built, transits, spans)
    return {
        int(task): float(weight)
        for task, weight in zip(tasks, weights, strict=True)
        if weight < 1.0 - _NEGLIGIBLE
    }


def _transfers(built: Built) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all transfers and the message of each."""
    tasks = [np.array(one.tasks, dtype=np.int64) for one in built.transits]
    owner = [np.full(len(row), index) for index, row in enumerate(tasks)]
    empty = np.empty(0, np.int64)
    return np.concatenate([empty, *tasks]), np.concatenate([empty, *owner])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    """When some transfers were on their way, and at what rate each.

    Attributes:
        begin_s, end_s: Of each. [s]
        rate: Of each; 1 to count them.
    """

    begin_s: Floats
    end_s: Floats
    rate: Floats

    def rows(self, rows: list[int]) -> _Spans:
        """Return some of them."""
        return _Spans(begin_s=self.begin_s[rows], end_s=self.end_s[rows], rate=self.rate[rows])

    def mean_rates(self, during: _Spans) -> Floats:
        """Return the mean sum of rates over each of other spans.

        All of it from two sorted lists: comparing every transfer with every other would take
        minutes for long scenarios.
        """
        carried = self._carried_until(during.end_s) - self._carried_until(during.begin_s)
        return np.asarray(carried / np.maximum(during.end_s - during.begin_s, _SHORTEST_S))

    def _carried_until(self, time_s: Floats) -> Floats:
        begun = _sum_of_rises(self.begin_s, self.rate, time_s)
        return np.asarray(begun - _sum_of_rises(self.end_s, self.rate, time_s))


def _sum_of_rises(begin_s: Floats, slope: Floats, time_s: Floats) -> Floats:
    """Return `sum(slope * max(0, time_s - begin_s))` at each time."""
    order = np.argsort(begin_s, kind="stable")
    slopes = np.concatenate(([0.0], np.cumsum(slope[order])))
    offsets = np.concatenate(([0.0], np.cumsum(slope[order] * begin_s[order])))
    count = np.searchsorted(begin_s[order], time_s, side="left")
    return np.asarray(slopes[count] * time_s - offsets[count])


def _fair_weights(built: Built, transits: NDArray[np.int64], spans: _Spans) -> Floats:
    """One over the flows of the same pair of hosts, on average over the transfer."""
    weights = np.ones(len(transits))
    counted = replace(spans, rate=np.ones(len(transits)))
    pairs: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, transit in enumerate(transits):
        pairs[built.transits[transit].source, built.transits[transit].target].append(row)
    for rows in pairs.values():
        pair = counted.rows(rows)
        weights[rows] = 1.0 / np.maximum(1.0, pair.mean_rates(pair))
    return weights


def _fifo_weights(built: Built, transits: NDArray[np.int64], spans: _Spans) -> Floats:
    """One over the busy links where a flow meets others that come another way."""
    queues = np.zeros(len(transits))
    ways: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, transit in enumerate(transits):
        before = _NOWHERE
        for link in built.transits[transit].links:
            ways[link][before].append(row)
            before = link
    for link, arriving in ways.items():
        full_bytes_per_s = _BUSY * float(built.graph.link_bandwidth_bytes_per_s[link])
        everyone = spans.rows([row for rows in arriving.values() for row in rows])
        for before, rows in arriving.items():
            these = spans.rows(rows)
            load = everyone.mean_rates(these)
            # A queue stands where flows meet; those that come the same way met further back.
            met = load - these.mean_rates(these) > _NEGLIGIBLE * load
            queues[rows] += (load > full_bytes_per_s) & (met | (before == _NOWHERE))
    return np.asarray(1.0 / np.maximum(1.0, queues))
