"""Time and link loads of what ranks send to their neighbors: blocks around a ring, and halos.

Of the `m` members in a domain one sends to another domain, where blocks go around a ring; where
edges go both ways, two do, one edge each.
"""

from __future__ import annotations

import numpy as np

from wattree.arrays import Floats
from wattree.cost.collective import GroupShape, LinkRates, PortLoads


def ring_pass_bytes(size_bytes: Floats, group: GroupShape) -> Floats:
    """Return the bytes one rank sends while every block visits all others. [B]

    In each of `n - 1` turns every rank sends the block it has, `size / n`, to the next rank: the
    bytes of a ring all-gather [1].

    Args:
        size_bytes: The blocks of all ranks together.
        group: Who takes part, neighbours in a domain neighbours in the ring.

    References:
        [1] H. Liu, M. Zaharia, P. Abbeel, "Ring Attention with Blockwise Transformers for
            Near-Infinite Context", 2023, arXiv:2310.01889.
    """
    return np.asarray(size_bytes * (group.ranks - 1.0) / group.ranks)


def halo_bytes(size_bytes: Floats, group: GroupShape) -> Floats:
    """Return the bytes the busiest rank sends: to both neighbors, or to the only other rank. [B]

    Args:
        size_bytes: Rows of both edges together.
        group: Who takes part, neighbours in the sample neighbours in rank.
    """
    sides = np.where(group.ranks > 2, 1.0, np.where(group.ranks > 1, 0.5, 0.0))
    return np.asarray(size_bytes * sides)


def neighbour_loads(sent_bytes: Floats, group: GroupShape, *, stretch: Floats | float) -> PortLoads:
    """Return the bytes that one rank sends over each kind of link, on average. [B]

    Args:
        sent_bytes: By one rank.
        group: Who takes part.
        stretch: How much longer a message takes on the links of a domain than through a port.
    """
    m, leaf = group.inside, group.of_leaf
    return PortLoads(
        scale_up=np.where(m > 1, sent_bytes * stretch, 0.0),
        adapter=np.where(group.ranks > m, sent_bytes / m, 0.0),
        uplink=np.where(group.ranks > leaf, sent_bytes / leaf, 0.0),
    )


def neighbour_work_s(
    loads: PortLoads, group: GroupShape, links: LinkRates, *, crossing_bytes: Floats
) -> Floats:
    """Return the time that links take, as long as that of their busiest rank. [s]

    A message has one sender, so the one that crosses to another domain has a single adapter:
    unlike in a collective, whose channels spread over the adapters of all members.

    Args:
        loads: As of `neighbour_loads`.
        group: Who takes part.
        links: What they reach.
        crossing_bytes: Sent to another domain by one rank. [B]
    """
    work = loads.scale_up / links.scale_up_bytes_per_s
    crosses = group.ranks > group.inside
    work = np.maximum(work, np.where(crosses, crossing_bytes / links.adapter_bytes_per_s, 0.0))
    return np.asarray(np.maximum(work, loads.uplink / links.uplink_bytes_per_s))


def neighbour_latency_s(group: GroupShape, links: LinkRates) -> Floats:
    """Return the latency of one turn: a message, not a collective of several steps. [s]"""
    crosses = group.ranks > group.inside
    alpha = links.alpha_s / 2 + np.where(crosses, links.alpha_network_s, 0.0)
    return np.asarray(np.where(group.ranks > 1, alpha, 0.0))
