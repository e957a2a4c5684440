"""Which part of the space of strategies a search lists, and over how many devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from wattree.hardware import Cluster
from wattree.job import Job
from wattree.job.offers import Offer
from wattree.strategy import SHARDINGS

#: Numbers of nodes, and of devices of one, that are tried in addition, near the best; the closed
#: form of each takes up to a second.
_MOST_NEAR = 8
#: The same of those that are tried where only time counts.
_MOST_FASTER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Which part of the space to list; by default all of it.

    Attributes:
        axes: Axis → degrees to try; any that are legal if it is not named.
        micro_batches: Micro-batch sizes to try; by default divisors as the module says.
        shardings, recomputations, schedules: To try; None for all recomputations. Schedules
            that few programs can run (zero-bubble, DualPipe, breadth-first) are tried if named.
        virtual_stages: Counts to try; None for all that leave no chunk empty.
        contexts: Ways of context parallelism to try; None for those that software has.
        cuts: Whether pipelines over pools of different devices are also cut by their speed.
        phantom: Only strategies with phantom layers, which train another function, instead of those
            without.
        processes: Processes on each device to try, where all devices hold whole replicas;
            several only if placements leave everything on the device.
        in_turn: Processes of a device take turns there (time slicing) instead of sharing it (MPS).
        placements: What lies in expanded memory that devices reach: `device` for nothing, or some
            of `placements.PLACED` joined by `+`; None for those that make sense on the cluster.
        offer: Features that the software can run; None for all.
        positions: Whether the positions of a sample may be split: by context and sequence
            parallelism, and among experts that are whole on a rank.
        idle_nodes: Whether strategies may use fewer nodes than there are.
        refined: Whether `plan` also changes the most promising strategies (`search.refine`,
            `search.mixed`).
    """

    axes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    micro_batches: Sequence[int] | None = None
    shardings: Sequence[str] = SHARDINGS
    recomputations: Sequence[str] | None = None
    schedules: Sequence[str] = ("1f1b", "gpipe", "interleaved")
    contexts: Sequence[str] | None = None
    virtual_stages: Sequence[int] | None = None
    cuts: bool = True
    phantom: bool = False
    processes: Sequence[int] = (1,)
    in_turn: bool = False
    placements: Sequence[str] | None = None
    offer: Offer | None = None
    positions: bool = True
    idle_nodes: bool = True
    refined: bool = True


def device_counts(devices: int, node_devices: int, *, max_devices: int | None) -> tuple[int, ...]:
    """Return how many devices strategies may use, most first.

    A job uses whole nodes alike, or part of one node. Counts divide the devices; of others only as
    many whole nodes, or devices of one, as are allowed are tried, and those of `counts_near`.

    Args:
        max_devices: Use no more; None for all.
    """
    most = devices if max_devices is None else min(max_devices, devices)
    largest = most // node_devices * node_devices or most
    return tuple(
        n
        for n in range(most, 0, -1)
        if n == largest or (devices % n == 0 and (n % node_devices == 0 or node_devices % n == 0))
    )


def counts_near(
    best: Collection[int], tried: Sequence[int], node_devices: int, *, batch: int
) -> tuple[int, ...]:
    """Return some numbers of devices that lie between those tried, most first.

    Whole nodes, or part of one.

    Args:
        best: Numbers with the best strategies; others are looked for up to the next one tried on
            either side. Anywhere if empty.
        tried: Most first.
        node_devices: Of a node.
        batch: Samples of a step.
    """
    near = set(range(1, 1 if best else tried[0]))
    for count in best:
        above = min((each for each in tried if each > count), default=count)
        below = max((each for each in tried if each < count), default=0)
        near |= set(range(below + 1, above))
    near -= set(tried)
    nodes = (count // node_devices for count in near if count % node_devices == 0)
    whole = [n * node_devices for n in suited(nodes, batch=batch, most=_MOST_NEAR)]
    part = suited((n for n in near if n < node_devices), batch=batch, most=_MOST_NEAR)
    return (*reversed(whole), *reversed(part))


def cluster_counts(cluster: Cluster, *, max_devices: int | None = None) -> tuple[int, ...]:
    """Return how many devices of a cluster strategies may use, most first (`device_counts`)."""
    each = math.gcd(*(pool.node.devices for pool in cluster.pools))
    counts = device_counts(cluster.devices, each, max_devices=max_devices)
    if not cluster.is_mixed:
        return _in_slices(counts, cluster)
    # The first nodes, whole, or part of the first.
    node = [pool.node.devices for pool in cluster.pools for _ in range(pool.nodes)]
    whole = set(itertools.accumulate(node))
    return tuple(n for n in counts if n in whole or node[0] % n == 0)


def cluster_counts_near(best: Collection[int], tried: Sequence[int], job: Job) -> tuple[int, ...]:
    """Return more numbers of devices, near the best of those tried (`counts_near`); a few."""
    if job.cluster.is_mixed or len(tried) < 2:
        return ()
    near = counts_near(best, tried, job.cluster.node.devices, batch=job.data.global_batch)
    return _in_slices(near, job.cluster)


def cluster_counts_below(count: int, job: Job, *, least: float) -> tuple[int, ...]:
    """Return a few smaller numbers of devices that may be faster than `count`, most first.

    They leave no more to split than `count` does by other means than samples and positions.

    Args:
        least: Fewer devices than so many are not faster.
    """
    if job.cluster.is_mixed:
        return ()
    each, splits = job.cluster.node.devices, job.data.global_batch * job.data.sequence_length
    left = {
        n: n // math.gcd(n, splits)
        for n in range(count, math.floor(least), -1)
        if n % each == 0 or n < each
    }
    fewer = [n for n in left if n < count and left[n] <= left[count]]
    fewer = list(_in_slices(fewer, job.cluster))
    return tuple(sorted(sorted(fewer, key=left.__getitem__)[:_MOST_FASTER], reverse=True))


def _in_slices(counts: Iterable[int], cluster: Cluster) -> tuple[int, ...]:
    """Return those of numbers of devices that a job may have: of a node's torus, even parts.

    Cloud TPUs come as such: 1, 4 and 8 of the chips of a host of v5e.
    """
    node = cluster.node
    if node.scale_up.kind != "torus":
        return tuple(counts)
    return tuple(n for n in counts if n >= node.devices or node.devices % n == 0)


def suited(nodes: Iterable[int], *, batch: int, most: int) -> list[int]:
    """Return at most so many numbers of nodes: those that leave least to split but the batch."""
    return sorted(sorted(nodes, key=lambda number: number // math.gcd(number, batch))[:most])
