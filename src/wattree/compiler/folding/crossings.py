"""Transfers from the ranks of one mesh to those of the next, by rank and by class.

Stages of two meshes may have unequal numbers of ranks, so a rank may send to several and be sent to
by several. What a rank sends is one task: it ends when all of its messages have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.compiler.folding.stage_classes import StageClasses, TransferCosts
from wattree.compiler.folding.transfer_costs import RankLinks, transfer_costs
from wattree.cost.rates import Rates
from wattree.distinct import distinct
from wattree.hardware import Cluster
from wattree.lowering.mesh_borders import BorderMessages
from wattree.lowering.topology import LinkUse, MeshTopology
from wattree.strategy import Mesh

_LOADS = ("scale_up_bytes", "adapter_bytes", "uplink_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCrossing:
    """Messages of the ranks of one stage to those of a stage on another mesh.

    Attributes:
        stage: Number of the sending stage, over all jobs.
        heading: +1 to the next stage, -1 to the previous one.
        senders, receivers: Ranks of each message, over all jobs.
        size_bytes: Of each, over the most that a rank sends.
        distance: How far each goes, from `MeshTopology.distance`.
        costs: Of one byte of each.
        busiest_s: What one byte of each takes at its sender's and at its receiver's link. [s/B]
    """

    stage: int
    heading: int
    senders: Integers
    receivers: Integers
    size_bytes: Floats
    distance: Integers
    costs: TransferCosts
    busiest_s: tuple[Floats, Floats]

    @property
    def messages(self) -> tuple[Integers, Integers, Integers]:
        """Senders, receivers, and numbers that distinguish messages."""
        alike = np.stack([self.size_bytes, self.distance.astype(np.float64)], axis=1)
        number = np.unique(alike, axis=0, return_inverse=True)[1].ravel()
        return self.senders, self.receivers, number


def rank_crossing(
    crossing: BorderMessages,
    ends: tuple[Integers, Integers],
    links: RankLinks,
    rates: Sequence[Rates],
    cluster: Cluster,
    *,
    stage: int,
    heading: int,
    first: int,
) -> RankCrossing:
    """Return the messages between ranks of two stages.

    Args:
        ends: Ranks of the sending and of the receiving stage, as `links` numbers them.
        rates: What links reach, by pool.
        first: Number of the first rank of `links` over all jobs.
    """
    senders, receivers = ends[0][crossing.senders], ends[1][crossing.receivers]
    everywhere = MeshTopology(mesh=Mesh(axes=()), cluster=cluster)
    distance = everywhere.distance(links.device[senders], links.device[receivers])
    costs = transfer_costs(senders, receivers, distance, links, rates)
    at = [
        np.where(
            distance > 0,
            1.0 / links.adapter_bytes_per_s[ranks],
            costs.scale_up_bytes / links.scale_up_bytes_per_s[ranks],
        )
        for ranks in (senders, receivers)
    ]
    return RankCrossing(
        stage=stage,
        heading=heading,
        senders=senders + first,
        receivers=receivers + first,
        size_bytes=crossing.size_bytes / max(crossing.most_bytes, 1e-300),
        distance=distance,
        costs=costs,
        busiest_s=(at[0], at[1]),
    )


def with_crossings(
    stages: Sequence[StageClasses],
    crossings: Sequence[RankCrossing],
    numbers: Integers,
    uses: Sequence[LinkUse],
) -> list[StageClasses]:
    """Return the classes of all stages, with the transfers between meshes.

    Args:
        numbers: Class of each rank, over all stages.
    """
    found = list(stages)
    base = np.cumsum([0, *(len(stage.ranks) for stage in stages)])
    for crossing in crossings:
        own, to = crossing.stage, crossing.stage + crossing.heading
        peers, costs = _of_classes(crossing, numbers, uses, base[own : own + 2])
        peers = np.where(peers < 0, -1, peers - base[to])
        if crossing.heading > 0:
            found[own] = replace(found[own], next_class=peers, to_next=costs)
        else:
            found[own] = replace(found[own], previous_class=peers, to_previous=costs)
    return found


def _of_classes(
    crossing: RankCrossing, numbers: Integers, uses: Sequence[LinkUse], span: Integers
) -> tuple[Integers, TransferCosts]:
    """Return the peers of the sending stage's classes, `(P, K)`, and the bytes sent."""
    count = int(span[1] - span[0])
    sender = numbers[crossing.senders] - span[0]
    receiver = numbers[crossing.receivers]
    first = np.full(count, -1)  # the rank that stands for each class
    first[sender[::-1]] = crossing.senders[::-1]
    mine = np.flatnonzero(crossing.senders == first[sender])  # its messages
    pairs, at = np.unique(
        np.stack([sender[mine], receiver[mine]], axis=1), axis=0, return_index=True
    )
    place = np.arange(len(pairs)) - np.searchsorted(pairs[:, 0], pairs[:, 0])
    shape = max(int(place.max(initial=0)) + 1, 1), count
    peers = np.full(shape, -1)
    peers[place, pairs[:, 0]] = pairs[:, 1]
    inward, flows = {}, {}
    for load in _LOADS:
        inward[load], flows[load] = np.zeros(shape), np.ones(shape)
        use = next((each for each in uses if each.load == load), None)
        if use is not None:
            brought = _brought(crossing, load, use, sender, receiver)
            inward[load][place, pairs[:, 0]], flows[load][place, pairs[:, 0]] = brought(mine[at])
    sums = _sums(crossing, sender[mine], mine, count)
    return peers, replace(sums, inward=inward, flows=flows)


def _brought(
    crossing: RankCrossing, load: str, use: LinkUse, sender: Integers, receiver: Integers
) -> Callable[[Integers], tuple[Floats, Floats]]:
    """Return message → bytes of one flow of its class on the receiver's link, and the flows."""
    link = use.of_rank[crossing.receivers]
    size = crossing.size_bytes * getattr(crossing.costs, load)
    carried = np.flatnonzero(size > 0)

    def added_up(*columns: Integers) -> tuple[Integers, Floats]:
        keys = np.stack(columns, axis=1)
        _, number = np.unique(keys, axis=0, return_inverse=True)
        sums = np.bincount(number.ravel(), weights=size)
        return np.asarray(number.ravel(), dtype=np.int64), np.asarray(sums, dtype=np.float64)

    of_link, on_link = added_up(sender, link)
    of_pair, on_pair = added_up(sender, receiver, link)
    ranks = distinct(np.stack([of_link[carried], crossing.senders[carried]], axis=1), axis=0)
    senders = np.bincount(ranks[:, 0], minlength=len(on_link))

    def brought(messages: Integers) -> tuple[Floats, Floats]:
        whole, own = on_link[of_link[messages]], on_pair[of_pair[messages]]
        several = np.maximum(senders[of_link[messages]], 1)
        share = np.divide(own, whole, out=np.zeros_like(own), where=whole > 0)
        return whole / several, np.where(own > 0, several * share, 1.0)

    return brought


def _sums(crossing: RankCrossing, own: Integers, mine: Integers, count: int) -> TransferCosts:
    """Return the total of the messages of one rank of each class.

    Args:
        own: Class of each of the messages `mine`.
        mine: The messages of one rank of each class.
    """
    size, costs = crossing.size_bytes[mine], crossing.costs
    crosses = crossing.distance[mine] > 0

    def total(values: Floats) -> Floats:
        sums = np.bincount(own, weights=values, minlength=count)
        return np.asarray(sums, dtype=np.float64)

    latency, work = np.zeros(count), np.zeros(count)
    np.maximum.at(latency, own, costs.latency_s[mine])
    at_sender, at_receiver = (size * busy[mine] for busy in crossing.busiest_s)
    np.maximum.at(work, own, at_receiver)
    for leaves in (False, True):
        work = np.maximum(work, total(np.where(crosses == leaves, at_sender, 0.0)))
    return TransferCosts(
        latency_s=latency,
        work_s=work,
        scale_up_bytes=total(size * costs.scale_up_bytes[mine]),
        adapter_bytes=total(size * costs.adapter_bytes[mine]),
        uplink_bytes=total(size * costs.uplink_bytes[mine]),
        sent=total(size),
    )
