"""Pass 10c: link classes, and times of collectives when no other group shares their links.

Links that carry the traffic of equal ranks are one class. A task's flow on a link class is what
all ranks that it stands for send over one such link: if eight groups share one adapter, the
eight folded twins ask for eight times its bandwidth and share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Floats, Integers
from wattree.cost import LinkRates
from wattree.lowering.topology import LinkUse


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkClasses:
    """Link classes of one kind.

    Attributes:
        name: Of the kind, for people.
        load: Field of a task that holds the bytes one rank sends over such links.
        of_class: Link class of each rank class, `(C,)`.
        twins: Ranks of each rank class on one such link, `(C,)`.
        bandwidth_bytes_per_s: Of one link of each class, `(L,)`. [B/s]
        one_way: Traffic goes in one direction only, or both directions share the link.
    """

    name: str
    load: str
    of_class: Integers
    twins: Floats
    bandwidth_bytes_per_s: Floats
    one_way: bool = False


def rank_rates(links: LinkRates) -> Mapping[str, float]:
    """Return the bandwidth share of one rank on links of each kind when all ranks send. [B/s]"""
    return {
        "scale_up_bytes": links.scale_up_bytes_per_s,
        "adapter_bytes": links.adapter_bytes_per_s,
        "uplink_bytes": links.uplink_bytes_per_s,
    }


def joint_links(of_jobs: Sequence[Sequence[LinkUse]]) -> tuple[LinkUse, ...]:
    """Return the links of several jobs on one cluster, ranks numbered one job after another."""
    return tuple(
        replace(kind[0], of_rank=np.concatenate([use.of_rank for use in kind]))
        for kind in zip(*of_jobs, strict=True)
    )


def parts_of_ranks(use: LinkUse, pools: Integers, rates: Sequence[LinkRates]) -> Floats | None:
    """Return the part of its link's bandwidth that each rank has when all ranks send at once.

    None for links behind the devices: no collective goes there.

    Args:
        pools: Pool of each rank.
        rates: What links reach, by pool.
    """
    if use.bandwidth_bytes_per_s is not None:
        return None
    own = np.array([rank_rates(each)[use.load] for each in rates])[pools]
    return np.asarray(own / capacities(use, rates)[use.of_rank])


def capacities(use: LinkUse, rates: Sequence[LinkRates]) -> Floats:
    """Return the nominal bandwidth of each link, `(links,)`; slow links count as normal. [B/s]

    Args:
        rates: What links reach, by pool.
    """
    links = int(use.of_rank.max()) + 1
    if use.bandwidth_bytes_per_s is not None:
        return np.full(links, use.bandwidth_bytes_per_s)
    by_pool = np.array([rank_rates(each)[use.load] for each in rates])
    if use.parts is not None:
        return np.asarray(by_pool @ use.parts)
    return np.full(links, use.ranks_per_link * by_pool[0])


def members_by_link(of_rank: Integers) -> Integers | None:
    """Return the ranks on each link, padded with -1; None if each rank has its own link.

    Args:
        of_rank: Link of each rank.
    """
    counts = np.bincount(of_rank)
    if counts.max(initial=0) <= 1:
        return None
    order = np.argsort(of_rank, kind="stable")
    members = np.full((len(counts), int(counts.max())), -1)
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    members[of_rank[order], place] = order
    return members[counts > 0]


def link_classes(
    uses: Sequence[LinkUse], classes: Integers, rates: Sequence[LinkRates]
) -> tuple[LinkClasses, ...]:
    """Return the link classes of each kind.

    Args:
        classes: Rank class of each rank, refined so that ranks of a class sit on equal links.
        rates: What links reach, by pool.
    """
    count = int(classes.max()) + 1
    representative = np.empty(count, dtype=np.int64)
    representative[classes[::-1]] = np.arange(len(classes))[::-1]  # the first rank of each class
    result = []
    for use in uses:
        # Equal links hold ranks of equal classes: the lowest class on a link names its class.
        lowest = np.full(int(use.of_rank.max()) + 1, count)
        np.minimum.at(lowest, use.of_rank, classes)
        chosen = use.of_rank[representative]
        first, of_class = np.unique(lowest[chosen], return_inverse=True)
        keys, sizes = np.unique(use.of_rank * np.int64(count) + classes, return_counts=True)
        twins = sizes[np.searchsorted(keys, chosen * np.int64(count) + np.arange(count))]
        bandwidth = np.empty(len(first))
        bandwidth[of_class] = capacities(use, rates)[chosen]
        if use.slowdown is not None:
            bandwidth[of_class] = bandwidth[of_class] / use.slowdown[chosen]
        result.append(
            LinkClasses(
                name=use.name,
                load=use.load,
                of_class=of_class,
                twins=twins.astype(np.float64),
                bandwidth_bytes_per_s=bandwidth,
                one_way=use.one_way,
            )
        )
    return tuple(result)


def alone_s(
    tasks: NDArray[np.void],
    uses: Sequence[LinkUse],
    shares_of_axes: Mapping[int, Sequence[float]],
    rates: Mapping[str, float],
) -> Floats:
    """Return the work of tasks where no other group uses their links, `(T,)`. [s]

    The input work assumes that every group of the mesh sends at once; a link that several
    ranks share carries one group faster. Collectives whose ports and network work in turn keep
    their time: groups in lock-step come to the shared link together.

    Args:
        tasks: Records of dtype `TASK`.
        shares_of_axes: Axes number of tasks → part of each kind of link that one group has.
        rates: From `rank_rates`.
    """
    work = tasks["work_s"].copy()
    for number, shares in shares_of_axes.items():
        chosen = np.flatnonzero(tasks["axes"] == number)
        if not len(chosen):
            continue
        together, alone = np.zeros(len(chosen)), np.zeros(len(chosen))
        for use, share in zip(uses, shares, strict=True):
            if use.load not in rates:
                continue  # behind the devices: no collective goes there
            one = tasks[use.load][chosen] / rates[use.load]
            together = np.maximum(together, one)
            alone = np.maximum(alone, one * share)
        moved = (together > 0) & ~tasks["in_turn"][chosen]
        work[chosen[moved]] *= alone[moved] / together[moved]
    return work


def share_of_one_group(groups: Integers, use: LinkUse) -> float:
    """Return the largest share of a link's ranks that belongs to one group."""
    if use.ranks_per_link <= 1:
        return 1.0
    return float(largest_runs(use.of_rank[groups]).max()) / use.ranks_per_link


def largest_runs(links: Integers) -> Integers:
    """Return the count of the most frequent link of each group; `(groups, members)`."""
    links = np.sort(links, axis=1)
    starts = np.ones(links.shape, dtype=bool)  # of runs of equal links
    starts[:, 1:] = np.diff(links, axis=1) != 0
    at = np.flatnonzero(starts)
    runs = np.diff(np.append(at, links.size))
    return np.maximum.reduceat(runs, np.searchsorted(at, np.arange(len(links)) * links.shape[1]))
