"""Time and link loads of blocks passed around a ring of ranks, one neighbor per turn."""

from __future__ import annotations

import numpy as np

from wattree.arrays import Floats
from wattree.cost.collective import GroupShape, LinkRates, PortLoads


def ring_pass_loads(size_bytes: Floats, group: GroupShape, *, stretch: Floats) -> PortLoads:
    """Return the bytes one rank sends while every block visits all others, on average. [B]

    In each of `n - 1` turns every rank sends the block it has, `size / n`, to the next rank: the
    bytes of a ring all-gather [1]. Of the `m` members in a domain one sends to another domain.

    Args:
        size_bytes: The blocks of all ranks together.
        group: Who takes part, neighbours in a domain neighbours in the ring.
        stretch: How much longer a block takes on the links of a domain than through a port, `(k,)`.

    References:
        [1] H. Liu, M. Zaharia, P. Abbeel, "Ring Attention with Blockwise Transformers for
            Near-Infinite Context", 2023, arXiv:2310.01889.
    """
    n, m = group.ranks, group.inside
    leaf = n if group.in_leaf is None else np.maximum(group.in_leaf, m)
    sent = size_bytes * (n - 1.0) / n
    return PortLoads(
        scale_up=np.where(m > 1, sent * stretch, 0.0),
        adapter=np.where(n > m, sent / m, 0.0),
        uplink=np.where(n > leaf, sent / leaf, 0.0),
    )


def ring_pass_work_s(
    size_bytes: Floats, group: GroupShape, links: LinkRates, *, stretch: Floats
) -> Floats:
    """Return the time of all turns, latency excluded. [s]

    A block has one sender, so the one that crosses to another domain has a single adapter: unlike
    in a collective, whose channels spread over the adapters of all members. Arguments are those of
    `ring_pass_loads`, and what links reach.
    """
    n, m = group.ranks, group.inside
    leaf = n if group.in_leaf is None else np.maximum(group.in_leaf, m)
    sent = size_bytes * (n - 1.0) / n
    work = np.where(m > 1, sent * stretch / links.scale_up_bytes_per_s, 0.0)
    work = np.maximum(work, np.where(n > m, sent / links.adapter_bytes_per_s, 0.0))
    return np.asarray(
        np.maximum(work, np.where(n > leaf, sent / leaf / links.uplink_bytes_per_s, 0.0))
    )


def ring_pass_latency_s(group: GroupShape, links: LinkRates) -> Floats:
    """Return the latency of one turn: a message, not a collective of several steps. [s]"""
    crosses = group.ranks > group.inside
    alpha = links.alpha_s / 2 + np.where(crosses, links.alpha_network_s, 0.0)
    return np.asarray(np.where(group.ranks > 1, alpha, 0.0))
