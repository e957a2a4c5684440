"""Find the links that a job and its neighbors overload, and for how long, from a trace."""

from __future__ import annotations

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.trace import Trace

#: Asked for more than this share of its bandwidth, a link restricts (rule 4 of play).
_FULL = 1 + 1e-9


def shared_links(trace: Trace, own: slice) -> Flags:
    """Return which links both the tasks `own` and others use, `(L,)`."""
    graph = trace.graph
    links = len(graph.link_bandwidth_bytes_per_s)
    flows = slice(*graph.flow_offsets[[own.start, own.stop]])
    mine = np.bincount(graph.flow_links[flows], minlength=links)
    every = np.bincount(graph.flow_links, minlength=links)
    return np.asarray((mine > 0) & (every > mine))


def crowded_s(trace: Trace, own: slice, begin_s: float, end_s: float) -> Floats:
    """Return for how long own and other tasks together overfill each link, `(L,)`. [s]

    Counts the time between two moments in which both are at work on a link and ask for more than
    it carries.

    Args:
        trace: What was executed.
        own: Tasks of the job.
        begin_s, end_s: The moments. [s]
    """
    graph = trace.graph
    bandwidth = graph.link_bandwidth_bytes_per_s
    task = np.repeat(np.arange(graph.tasks), np.diff(graph.flow_offsets))
    begin = np.clip((trace.start_s + graph.latency_s)[task], begin_s, end_s)
    end = np.clip(trace.end_s[task], begin_s, end_s)
    at_work = (end > begin) & shared_links(trace, own)[graph.flow_links]
    task, begin, end = task[at_work], begin[at_work], end[at_work]
    if not len(task):
        return np.zeros(len(bandwidth))
    link, rate = graph.flow_links[at_work], graph.flow_bytes_per_s[at_work]
    mine = ((task >= own.start) & (task < own.stop)).astype(np.int64)
    moment, on = np.concatenate([begin, end]), np.tile(link, 2)
    order = np.lexsort((moment, on))
    moment, on = moment[order], on[order]

    def level(change: Floats | Integers) -> Floats:
        """Return what holds after each moment; every link begins and ends at 0."""
        return np.asarray(np.cumsum(np.concatenate([change, -change])[order]))

    asked, own_flows, other_flows = level(rate), level(mine), level(1 - mine)
    crowded = (own_flows > 0) & (other_flows > 0) & (asked > bandwidth[on] * _FULL)
    # The last moment of a link is the end of all its flows, so nothing reaches into the next.
    lasts = np.diff(moment, append=moment[-1])
    found = np.bincount(on[crowded], weights=lasts[crowded], minlength=len(bandwidth))
    return found.astype(np.float64)
