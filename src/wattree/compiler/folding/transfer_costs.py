"""Time of messages between ranks without contention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.compiler.folding.stage_classes import TransferCosts
from wattree.cost.rates import Rates
from wattree.lowering.links import capacities
from wattree.lowering.topology import MeshTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLinks:
    """Latency and bandwidth of each rank's links for an uncontended message, `(ranks,)` each.

    Attributes:
        device: Of each rank.
        pools: Pool of each rank.
        alpha_s, alpha_network_s: Latency of its collectives, and of its network. [s]
        scale_up_bytes_per_s, adapter_bytes_per_s: Of its port and of its whole adapter. [B/s]
        filled: Devices of its scale-up domain that have a rank.
    """

    device: Integers
    pools: Integers
    alpha_s: Floats
    alpha_network_s: Floats
    scale_up_bytes_per_s: Floats
    adapter_bytes_per_s: Floats
    filled: Floats

    @classmethod
    def of(cls, topology: MeshTopology, rates: Sequence[Rates], pools: Integers) -> RankLinks:
        """Return the links of the ranks of a mesh.

        Args:
            rates: What links reach, by pool.
            pools: Pool of each rank.
        """
        links = [each.links for each in rates]
        adapters = next(use for use in topology.links() if use.load == "adapter_bytes")
        return cls(
            device=topology.device_of(np.arange(topology.mesh.ranks)),
            pools=pools,
            alpha_s=np.array([each.alpha_s for each in links])[pools],
            alpha_network_s=np.array([each.alpha_network_s for each in links])[pools],
            scale_up_bytes_per_s=np.array([e.scale_up_bytes_per_s for e in links])[pools],
            adapter_bytes_per_s=capacities(adapters, links)[adapters.of_rank],
            filled=np.array([topology.filled_of(pool) for pool in range(len(rates))])[pools],
        )

    def joined(self, other: RankLinks) -> RankLinks:
        """Return the links of these ranks, followed by those of others."""
        both = {
            field.name: np.concatenate([getattr(self, field.name), getattr(other, field.name)])
            for field in fields(self)
        }
        return RankLinks(**both)


def transfer_costs(
    senders: Integers,
    receivers: Integers,
    distance: Integers,
    links: RankLinks,
    rates: Sequence[Rates],
) -> TransferCosts:
    """Return the cost per byte of transfers that share no link with another.

    The slower end decides; the other's link has room to spare.

    Args:
        senders, receivers: Ranks of each transfer.
        distance: How far they are apart, from `MeshTopology.distance`.
        rates: What links reach, by pool.
    """
    crosses = distance > 0

    def slower(of_rank: Floats) -> Floats:
        return np.minimum(of_rank[senders], of_rank[receivers])

    # Half: a message, not a collective of several steps.
    alpha = np.maximum(links.alpha_s[senders], links.alpha_s[receivers]) / 2
    network = np.maximum(links.alpha_network_s[senders], links.alpha_network_s[receivers])
    stretch = _stretch(senders, receivers, links, rates)
    inside = stretch / slower(links.scale_up_bytes_per_s)
    outside = 1.0 / slower(links.adapter_bytes_per_s)
    return TransferCosts(
        latency_s=np.where(crosses, alpha + network, alpha),
        work_s=np.where(crosses, outside, inside),
        scale_up_bytes=np.where(crosses, 0.0, stretch),
        adapter_bytes=np.where(crosses, 1.0, 0.0),
        uplink_bytes=np.where(distance > 1, 1.0, 0.0),
    )


def _stretch(
    senders: Integers, receivers: Integers, links: RankLinks, rates: Sequence[Rates]
) -> Floats:
    """Return the ratio of a message's time inside a domain to its time through a port alone."""
    distance = (links.device[receivers] - links.device[senders]).astype(np.float64)
    stretch = np.ones(len(senders))
    for pool, own in enumerate(rates):
        mine = np.flatnonzero(links.pools[senders] == pool)  # domains end with their pool
        filled = links.filled[senders[mine]]
        stretch[mine] = own.collectives.transfer_stretch(distance[mine], filled)
    return stretch
