"""How much of a crowded link a flow takes besides others: weights of max-min shares, and limits.

`fair` links serve the pairs of hosts in turn, so flows of one pair share one turn. On `fifo` links
a flow's share is its part of the queues, and it may be less than links have free (`windows`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.netlab.graph import WHOLE, Built, Share
from benchmarks.netlab.windows import window_rates
from wattree.arrays import Floats
from wattree.trace import Trace

#: Weights nearer to 1 than this change nothing that could be measured.
_NEGLIGIBLE = 0.02
#: Transfers of no bytes take no time; their rate is none, whatever it is divided by. [s]
_SHORTEST_S = 1e-12


def shares_of(built: Built, trace: Trace, *, queueing: str) -> Mapping[int, Share]:
    """Return the share of each transfer that has not all that max-min gives it.

    Args:
        trace: How it was executed last: when all of them ran.
        queueing: `fair` or `fifo`.
    """
    tasks, transits = _transfers(built)
    begin_s = trace.start_s[tasks] + built.graph.latency_s[tasks]
    end_s = np.maximum(begin_s, trace.end_s[tasks])
    spans = _Spans(begin_s=begin_s, end_s=end_s, rate=np.ones(len(tasks)))
    if queueing == "fifo":
        weights, limits = _fifo_shares(built, transits, spans)
    else:
        weights, limits = _fair_weights(built, transits, spans), np.ones(len(tasks))
    shares = {
        int(task): Share(weight=_whole(float(weight)), limit=_whole(float(limit)))
        for task, weight, limit in zip(tasks, weights, limits, strict=True)
    }
    return {task: share for task, share in shares.items() if share != WHOLE}


def _whole(part: float) -> float:
    return part if part < 1.0 - _NEGLIGIBLE else 1.0


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
    pairs: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, transit in enumerate(transits):
        pairs[built.transits[transit].source, built.transits[transit].target].append(row)
    for rows in pairs.values():
        pair = spans.rows(rows)
        weights[rows] = 1.0 / np.maximum(1.0, pair.mean_rates(pair))
    return weights


def _fifo_shares(built: Built, transits: NDArray[np.int64], spans: _Spans) -> tuple[Floats, Floats]:
    """What windows and queues leave a flow, on average over its way (`window_rates`)."""
    ways = [built.transits[transit].way for transit in transits]
    own = np.array([built.transits[transit].bandwidth_bytes_per_s for transit in transits])
    rates = cache(lambda ways: window_rates(ways, built.graph.link_bandwidth_bytes_per_s))
    carried_bytes, free_bytes = np.zeros(len(transits)), np.zeros(len(transits))
    for begin_s, end_s, rows in _moments(spans):
        rate, is_held = rates(tuple(ways[row] for row in rows))  # the same ones meet again
        carried_bytes[rows] += np.minimum(rate, own[rows]) * (end_s - begin_s)
        free_bytes[rows] += np.where(is_held, own[rows], rate) * (end_s - begin_s)
    whole_bytes = np.maximum(own * (spans.end_s - spans.begin_s), _SHORTEST_S)
    moved = spans.end_s > spans.begin_s
    weights = np.where(moved, carried_bytes / whole_bytes * own / own.max(initial=1.0), 1.0)
    limits = np.where(moved, np.minimum(free_bytes / whole_bytes, 1.0), 1.0)
    return weights, limits


def _moments(spans: _Spans) -> Iterator[tuple[float, float, list[int]]]:
    """Yield times between which the same transfers are on their way, with these."""
    moved = np.flatnonzero(spans.end_s > spans.begin_s)
    changes = sorted(
        [(float(spans.begin_s[row]), 1, int(row)) for row in moved]
        + [(float(spans.end_s[row]), 0, int(row)) for row in moved]
    )
    under_way: set[int] = set()
    before_s = 0.0
    for time_s, begins, row in changes:
        if under_way and time_s > before_s:
            yield before_s, time_s, sorted(under_way)
        before_s = time_s
        (under_way.add if begins else under_way.discard)(row)
