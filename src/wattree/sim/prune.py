"""Removes links that cannot be congested: fewer flows to simulate, the same result.

Tasks of one stream never run at once, so a link never carries more than, summed over streams, the
largest flow of each. Where that fits, rule 4 never looks at the link.
"""

from __future__ import annotations

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.compiled import kernel
from wattree.graph import ExecutionGraph
from wattree.sim.rules import CROWDED_TOLERANCE

#: Links x streams up to which the bound is worth its table: 256 MB.
_MOST_PAIRS = 32_000_000


def crowdable_flows(graph: ExecutionGraph) -> tuple[Integers, Integers, Floats]:
    """Return offsets, links and rates of the flows that may cross a congested link.

    A flow that keeps a link keeps its busiest one too: progressive filling goes by it.
    """
    offsets, links, rates = graph.flow_offsets, graph.flow_links, graph.flow_bytes_per_s
    pairs = len(graph.link_bandwidth_bytes_per_s) * len(graph.stream_class)
    if not len(links) or pairs > _MOST_PAIRS:
        return offsets, links, rates
    demand = np.zeros(len(graph.link_bandwidth_bytes_per_s))
    _add_up(
        np.zeros((len(demand), len(graph.stream_class))),
        demand,
        np.require(offsets, np.int64, ("C", "A", "W")),
        np.require(links, np.int64, ("C", "A", "W")),
        np.require(rates, np.float64, ("C", "A", "W")),
        np.require(graph.stream_offsets, np.int64, ("C", "A", "W")),
        np.require(graph.stream_ids, np.int64, ("C", "A", "W")),
    )
    # Half the tolerance: the engine adds up in another order.
    limit = graph.link_bandwidth_bytes_per_s * (1 + (CROWDED_TOLERANCE - 1) / 2)
    crowdable = demand > limit
    if crowdable[demand > 0].all():
        return offsets, links, rates
    return _kept(graph, crowdable)


def _kept(graph: ExecutionGraph, crowdable: Flags) -> tuple[Integers, Integers, Floats]:
    """Return the flows on links that may be congested, and the busiest link of each such task."""
    rates = graph.flow_bytes_per_s
    counts = np.diff(graph.flow_offsets)
    task = np.repeat(np.arange(graph.tasks), counts)
    kept = crowdable[graph.flow_links]
    flows = counts > 0
    starts = graph.flow_offsets[:-1][flows]
    any_kept = np.zeros(graph.tasks, dtype=bool)
    any_kept[flows] = np.logical_or.reduceat(kept, starts)
    busiest = np.zeros(graph.tasks)
    busiest[flows] = np.maximum.reduceat(rates, starts)
    kept |= any_kept[task] & (rates == busiest[task])
    offsets = np.zeros(graph.tasks + 1, dtype=np.int64)
    np.cumsum(np.bincount(task[kept], minlength=graph.tasks), out=offsets[1:])
    return offsets, graph.flow_links[kept], rates[kept]


@kernel
def _add_up(
    most: Floats,
    demand: Floats,
    offsets: Integers,
    links: Integers,
    rates: Floats,
    stream_offsets: Integers,
    stream_ids: Integers,
) -> None:
    """Add to `demand` of each link the largest flow of each stream. [B/s]"""
    for task in range(len(offsets) - 1):
        for k in range(offsets[task], offsets[task + 1]):
            link = links[k]
            if stream_offsets[task] == stream_offsets[task + 1]:  # may run alongside any other
                demand[link] += rates[k]
                continue
            stream = stream_ids[stream_offsets[task]]
            if rates[k] > most[link, stream]:
                demand[link] += rates[k] - most[link, stream]
                most[link, stream] = rates[k]
