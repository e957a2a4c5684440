"""Time, bytes sent and port loads of collectives, by size and group."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattree.arrays import Floats
from wattree.cost import (
    GroupShape,
    halo_bytes,
    neighbour_latency_s,
    neighbour_loads,
    neighbour_work_s,
    ring_pass_bytes,
    volume_factor,
)
from wattree.cost.rates import Rates
from wattree.graph import UNROUTED, TokenRouting
from wattree.lowering.program import CollectiveKind

#: Collectives that pass blocks between neighbors. Gradients are sent with the keys and
#: values of all turns but the last, so only that one has a latency of its own.
AROUND = frozenset({CollectiveKind.RING_GATHER, CollectiveKind.RING_REDUCE})
#: Collectives with a root, and those that send as much.
_ROOTED = {
    CollectiveKind.BROADCAST: CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE: CollectiveKind.REDUCE_SCATTER,
}


class CollectiveCosts(NamedTuple):
    """Costs of a collective, `(n,)` each.

    Attributes:
        latency_s, work_s: Fixed part and rest of its time. The work assumes that every group
            of the mesh runs it at once. [s]
        wire_bytes: Sent by one rank. [B]
        scale_up_bytes, adapter_bytes, uplink_bytes: Loads, as `cost.PortLoads`. [B]
        in_turn: 1 where ports and network work sequentially, else 0.
    """

    latency_s: Floats
    work_s: Floats
    wire_bytes: Floats
    scale_up_bytes: Floats
    adapter_bytes: Floats
    uplink_bytes: Floats
    in_turn: Floats


def collective_costs(
    kind: CollectiveKind,
    size_bytes: Floats,
    group: GroupShape,
    rates: Rates,
    *,
    routing: TokenRouting = UNROUTED,
) -> CollectiveCosts:
    """Return the costs of a collective."""
    if kind in AROUND:
        turns = group.ranks - 1.0 if kind is CollectiveKind.RING_GATHER else 1.0
        sent = ring_pass_bytes(size_bytes, group)
        return _neighbour_costs(sent, group, rates, turns=turns, crossing_bytes=sent)
    if kind is CollectiveKind.HALO:
        sent = halo_bytes(size_bytes, group)
        # Each edge that crosses has an adapter of its own where several members share a domain.
        crossing = np.where(group.inside > 1, np.minimum(sent, size_bytes / 2), sent)
        return _neighbour_costs(sent, group, rates, turns=1.0, crossing_bytes=crossing)
    if kind in _ROOTED:
        return _rooted_costs(kind, size_bytes, group, rates)
    once = routing if rates.moe_sends_once else UNROUTED
    cost = rates.collectives.cost(kind.value, size_bytes, group, rates.links, routing=once)
    loads = cost.loads
    factor = rates.moe_exchange_factor if routing.copies > 1 else 1.0
    # Loads of links shrink with the time, so that they do not bound it. What ranks send stays.
    load = min(factor, 1.0)
    return CollectiveCosts(
        latency_s=cost.latency_s,
        work_s=cost.work_s * factor,
        wire_bytes=volume_factor(kind.value, group.ranks) * size_bytes,
        scale_up_bytes=loads.scale_up * load,
        adapter_bytes=loads.adapter * load,
        uplink_bytes=loads.uplink * load,
        in_turn=cost.in_turn.astype(np.float64),
    )


def _neighbour_costs(
    sent_bytes: Floats,
    group: GroupShape,
    rates: Rates,
    *,
    turns: Floats | float,
    crossing_bytes: Floats,
) -> CollectiveCosts:
    """Return the costs of messages to neighbors, in so many turns."""
    links = rates.links
    stretch = rates.collectives.neighbour_stretch(group)
    loads = neighbour_loads(sent_bytes, group, stretch=stretch)
    return CollectiveCosts(
        latency_s=turns * neighbour_latency_s(group, links),
        work_s=neighbour_work_s(loads, group, links, crossing_bytes=crossing_bytes),
        wire_bytes=sent_bytes,
        scale_up_bytes=loads.scale_up,
        adapter_bytes=loads.adapter,
        uplink_bytes=loads.uplink,
        in_turn=np.zeros_like(sent_bytes),
    )


def _rooted_costs(
    kind: CollectiveKind, size_bytes: Floats, group: GroupShape, rates: Rates
) -> CollectiveCosts:
    """Return the costs of a collective with a root: broadcast or reduce.

    In a ring the whole goes through the port of every rank but the last: as much as in a gather
    whose whole is `n / (n - 1)` times as large.
    """
    factor = np.where(group.ranks > 1, group.ranks / np.maximum(group.ranks - 1.0, 1.0), 0.0)
    return collective_costs(_ROOTED[kind], size_bytes * factor, group, rates)
