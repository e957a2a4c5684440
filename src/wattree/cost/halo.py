"""Time and link loads of a halo exchange: edge rows sent to neighboring parts."""

from __future__ import annotations

import numpy as np

from wattree.arrays import Floats
from wattree.cost.collective import GroupShape, LinkRates, PortLoads


def halo_bytes(size_bytes: Floats, group: GroupShape) -> Floats:
    """Return the bytes the busiest rank sends: to both neighbors, or to the only other rank. [B]

    Args:
        size_bytes: Rows of both edges together.
        group: Who takes part.
    """
    sides = np.where(group.ranks > 2, 1.0, np.where(group.ranks > 1, 0.5, 0.0))
    return np.asarray(size_bytes * sides)


def halo_loads(size_bytes: Floats, group: GroupShape, *, stretch: Floats) -> PortLoads:
    """Return the bytes that one rank sends over each kind of link, on average. [B]

    Of the `m` members in a domain two have a neighbour in another one, and send it one edge each:
    the bytes of one whole exchange leave the domain.

    Args:
        size_bytes: Rows of both edges together.
        group: Who takes part, neighbours in the sample neighbours in rank.
        stretch: How much longer a message takes on the links of a domain than through a port.
    """
    m = group.inside
    leaf = group.ranks if group.in_leaf is None else np.maximum(group.in_leaf, m)
    sent = halo_bytes(size_bytes, group)
    return PortLoads(
        scale_up=np.where(m > 1, sent * stretch, 0.0),
        adapter=np.where(group.ranks > m, sent / m, 0.0),
        uplink=np.where(group.ranks > leaf, sent / leaf, 0.0),
    )


def halo_work_s(
    size_bytes: Floats, group: GroupShape, links: LinkRates, *, stretch: Floats
) -> Floats:
    """Return the time of the exchange, latency excluded. [s]

    Both neighbours are served at once; links take as long as their busiest rank. Each edge that
    crosses to another domain has an adapter of its own where several members share the domain.
    """
    m = group.inside
    leaf = group.ranks if group.in_leaf is None else np.maximum(group.in_leaf, m)
    sent = halo_bytes(size_bytes, group)
    crossing = np.where(m > 1, np.minimum(sent, size_bytes / 2), sent)
    work = np.where(m > 1, sent * stretch / links.scale_up_bytes_per_s, 0.0)
    work = np.maximum(work, np.where(group.ranks > m, crossing / links.adapter_bytes_per_s, 0.0))
    return np.asarray(
        np.maximum(work, np.where(group.ranks > leaf, sent / leaf / links.uplink_bytes_per_s, 0.0))
    )
