"""Time of the traffic that keeps replicas of a block in step, and of ports that it shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from wattree.arrays import Floats
from wattree.cost.rates import Rates
from wattree.lowering.collective_costs import CollectiveCosts, collective_costs
from wattree.lowering.groups import Placement
from wattree.lowering.links import rank_rates
from wattree.lowering.phase_costs import PhaseCosts
from wattree.lowering.program import CollectiveKind, Scale
from wattree.lowering.storage import SyncGroup, together

#: Kinds of ports that collectives share, as tables name the time for which they are busy.
PORTS = "scale_up_s", "adapter_s", "uplink_s"


def copied_bytes(sync: Sequence[SyncGroup], scale: Scale) -> tuple[Floats, Floats, Floats]:
    """Return the traffic of copies of shards. [B]

    After gathers, before the reductions of every micro-batch, and before those of a step.
    """
    out = into = once = np.zeros_like(scale.micro_batch)
    for group in sync:
        out = out + group.gather_copy_bytes * (scale.degree(group.gather_axes) > 1)
        copied = group.reduce_copy_bytes * (scale.degree(group.scatter_axes) > 1)
        if group.every_micro_batch:
            into = into + copied
        else:
            once = once + copied
    return out, into, once


def bucket_part(size_bytes: Floats, bucket_bytes: Floats) -> Floats:
    """Return the share of blocks of one size in a full bucket, at most 1."""
    return np.asarray(1.0 / np.maximum(np.ceil(bucket_bytes / np.maximum(size_bytes, 1e-30)), 1.0))


def traffic_s(
    sync: Sequence[SyncGroup],
    scale: Scale,
    placement: Placement,
    rates: Rates,
    *,
    buckets_bytes: tuple[Floats, Floats],
) -> tuple[tuple[Floats, Floats, Floats, Floats], Floats, Floats]:
    """Return the time of gathers, reductions of every micro-batch and step, and updates. [s]

    And without latency, `(2, n)` each; then for how long gathers, and all of them together, keep
    ports of each kind busy, `(3, n)`. [s] A block has its part of the latency of the buckets in
    which its gradients leave and its parameters return.
    """
    none = np.zeros_like(scale.micro_batch)
    nothing, all_busy_s = np.zeros((2, len(none))), np.zeros((len(PORTS), len(none)))

    def time_s(
        kind: CollectiveKind, axes: tuple[str, ...], size_bytes: Floats, part: Floats | float = 1.0
    ) -> Floats:
        if not axes:
            return nothing
        cost = collective_costs(kind, size_bytes, placement.group(axes, scale), rates)
        all_busy_s[:] += _busy_s(cost, rates)
        lasts_s = np.stack([part * cost.latency_s + cost.work_s, cost.work_s + none])
        return np.where(size_bytes > 0, lasts_s, 0.0)

    reduced = sum((group.reduce_bytes for group in sync), none)
    updated = sum((each.gather_bytes for each in sync if each.update_axes), none)
    part, back = map(bucket_part, (reduced, updated), buckets_bytes)

    def gathers_s(axes: Callable[[SyncGroup], tuple[str, ...]], part: Floats | float) -> Floats:
        gathered = together(sync, axes, lambda group: group.gather_bytes)
        return sum(
            (time_s(CollectiveKind.ALL_GATHER, *each, part) for each in gathered.items()), nothing
        )

    def reductions_s(*, every_micro_batch: bool) -> Floats:
        own = [group for group in sync if group.every_micro_batch == every_micro_batch]
        found = nothing
        reduced = together(own, lambda g: (g.scatter_axes, g.reduce_axes), lambda g: g.reduce_bytes)
        for (scatter, rest), size in reduced.items():
            found = found + time_s(CollectiveKind.REDUCE_SCATTER, scatter, size, part)
            size_of_shard = size / scale.degree(scatter)
            found = found + time_s(CollectiveKind.ALL_REDUCE, rest, size_of_shard, part)
        return found

    gather = gathers_s(lambda group: group.gather_axes, 1.0)
    gathers_busy_s = all_busy_s.copy()
    every, once = (reductions_s(every_micro_batch=each) for each in (True, False))
    update = gathers_s(lambda group: group.update_axes, back)
    return (gather, every, once, update), gathers_busy_s, all_busy_s


def ports_s(phase: PhaseCosts, rates: Rates) -> Floats:
    """Return for how long the collectives of a phase keep ports of each kind busy, `(3, n)`. [s]"""
    return np.stack([each.sum(axis=0) for each in _busy_s(phase, rates)])


def _busy_s(costs: CollectiveCosts | PhaseCosts, rates: Rates) -> list[Floats]:
    """Return for how long collectives keep ports of each kind busy, in the order of `PORTS`. [s]"""
    return [getattr(costs, load) / rate for load, rate in rank_rates(rates.links).items()]
