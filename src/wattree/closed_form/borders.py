"""Transfers over the borders of pipeline stages, in closed form, for arrays of strategies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from typing import NamedTuple

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.closed_form.cost_table import BlockCostTable
from wattree.closed_form.stage_kinds import StageKinds
from wattree.strategy import AXES


class Transfers(NamedTuple):
    """Times of transfers of a micro-batch in one direction, `(n,)` each. [s]

    Attributes:
        through: Over all borders, one after the other.
        longest: Over the one with the slowest links, and back from the last stage to the first.
        side_by_side: Whether a stage has such links on both of its sides.
        crowds: Whether what leaves in both directions shares them.
    """

    through: Floats
    longest: Floats
    side_by_side: Flags
    crowds: Flags


class Borders:
    """The time of transfers between stages.

    Which links a strategy's transfers cross follows from its degrees alone, so it is looked at once
    for all strategies, and not for each pipeline again.

    Args:
        by_pool: Costs of blocks, by pool.
        hidden: Whether transfers run alongside computation.
    """

    def __init__(self, by_pool: Sequence[BlockCostTable], *, hidden: bool) -> None:
        self._tables, self.hidden = by_pool[0], hidden
        axes, ranks = self._tables.degrees.axes, self._tables.ranks
        degrees = [axes[axis].astype(np.float64) for axis in AXES if axis != "pp"]
        stride = np.asarray(np.prod(degrees, axis=0))
        self._routes = [_Route(tables, stride, ranks, senders=stride) for tables in by_pool]
        far = stride * np.maximum(axes["pp"] - 1.0, 1.0)  # from the first stage to the last
        self._mirrors = cache(lambda: [_Route(t, far, ranks, senders=ranks) for t in by_pool])

    def transfers(self, kinds: StageKinds) -> Transfers:
        """Return the times of transfers, 0 without any."""
        (mean, most), last, routes = self._bytes(kinds), kinds.stages - 1.0, self._routes
        through = self._through_s(kinds) if len(routes) > 1 else routes[0].through_s(mean, last)
        longest = self._longest_s(kinds, routes, lambda route: route.slowest_s(most, last))
        several, alike = kinds.stages > 1, self.are_alike(kinds)
        shares = alike | routes[0].shares_adapters
        return Transfers(
            through=np.where(several, through, 0.0),
            longest=np.where(several, longest, 0.0),
            side_by_side=alike,
            crowds=shares & ((kinds.virtual > 1) | (kinds.stages > 2)),
        )

    def hops_s(self, kinds: StageKinds, own: Integers) -> Floats:
        """Return the time of one transfer over each border, `(stages - 1, n)`. [s]

        Args:
            own: Strategies of one pipeline.
        """
        size, pools = self._bytes(kinds)[0][own], kinds.helds[kinds.pipeline[own[0]]].pools
        routes, borders = [route.of(own) for route in self._routes], pools.shape[1] - 1
        found = np.zeros((max(borders, 1), len(own)))
        for stage in range(borders):
            # The ranks of a stage send to the next, and those of the next send back.
            used = np.flatnonzero(pools[:, stage : stage + 2].any(axis=1))
            found[stage] = np.max([routes[n].hop_s(size, float(stage)) for n in used], axis=0)
        return found

    def _through_s(self, kinds: StageKinds) -> Floats:
        """Return the time over all borders, where pools differ. [s]"""
        found = np.zeros(len(kinds.pipeline))
        for pipeline in range(len(kinds.helds)):
            if len(own := kinds.rows(pipeline)[0]):
                found[own] = self.hops_s(kinds, own).sum(axis=0)
        return found

    def are_alike(self, kinds: StageKinds) -> Flags:
        """Return whether all borders cross links of one kind, `(n,)`: a stage has one such port."""
        crossed = self._routes[0].borders(kinds.stages - 1.0)
        return np.asarray((crossed == 0) | self._routes[0].is_alike)

    def mirror_s(self, kinds: StageKinds, elements: Floats) -> Floats:
        """Return the time in which stages that hold the same chunks exchange gradients, `(n,)`. [s]

        Args:
            elements: What a device updates, `(n,)`.
        """
        if not (kinds.copies > 1).any():
            return np.zeros(len(elements))
        size = elements * self._tables.setting.software.reduce_bytes
        time_s = self._longest_s(kinds, self._mirrors(), lambda route: route.far_s(size))
        return np.asarray(np.where(kinds.copies > 1, time_s, 0.0))

    def _bytes(self, kinds: StageKinds) -> tuple[Floats, Floats]:
        """Return what crosses a border in one direction, on average and at most, `(n,)`. [B]"""
        mean, most = kinds.crossing_bytes(self._tables.boundary_bytes)
        at = kinds.pipeline, self._tables.block_of
        return mean[at], most[at]

    def _longest_s(
        self, kinds: StageKinds, routes: Sequence[_Route], time_s: Callable[[_Route], Floats]
    ) -> Floats:
        """Return the time on the slowest pool that each strategy uses. [s]"""
        times = [time_s(route) for route in routes]
        if len(times) == 1:
            return times[0]
        used = np.array([contents.pools.sum(axis=1) > 0 for contents in kinds.helds])
        both = zip(times, used.T[:, kinds.pipeline], strict=True)
        return np.asarray(np.max([np.where(has, time, -np.inf) for time, has in both], axis=0))


class _Route:
    """The destinations of strategies' transfers on the devices of one pool.

    Args:
        stride: Ranks from the sender to the receiver, `(n,)`: those of a stage.
        senders: Neighbouring ranks that send at once, `(n,)`; they share adapters.
    """

    def __init__(
        self, tables: BlockCostTable, stride: Floats, ranks: Floats, *, senders: Floats
    ) -> None:
        node, links, collectives = tables.pool.node, tables.rates.links, tables.rates.collectives
        self.stride, self._domain, self._leaf = (
            stride,
            tables.pool.domain_devices,
            tables.place.leaf_devices,
        )
        sharing = node.devices / node.nics if 0 < node.nics < node.devices else 1.0
        stretch = collectives.transfer_stretch(stride, np.minimum(ranks, self._domain))
        outside = np.minimum(senders / sharing, 1.0) / links.adapter_bytes_per_s
        beyond = np.maximum(outside, 1.0 / links.uplink_bytes_per_s)
        self.s_per_byte = np.stack([stretch / links.scale_up_bytes_per_s, outside, beyond])
        self._latency_s = links.alpha_s / 2 + np.array([0.0, 1.0, 1.0]) * links.alpha_network_s

        self.is_alike = stride >= self._domain
        self.shares_adapters = senders < sharing

    def of(self, rows: Integers) -> _Route:
        """Return the destinations of some of the strategies, for `hop_s`."""
        found = copy(self)
        found.stride, found.s_per_byte = self.stride[rows], self.s_per_byte[:, rows]
        return found

    def borders(self, last: Floats) -> Floats:
        """Return the borders of domains up to a stage."""
        return self._place(last, self._domain)

    def through_s(self, size: Floats, last: Floats) -> Floats:
        """Return the time over all borders up to a stage. [s]"""
        outside, beyond = (
            np.minimum(self._place(last, n), last) for n in (self._domain, self._leaf)
        )
        counts = np.stack([last - outside, outside - beyond, beyond])
        return np.asarray((counts * self._times_s(size)).sum(axis=0))

    def slowest_s(self, size: Floats, last: Floats) -> Floats:
        """Return the time over the slowest border up to a stage. [s]"""
        return self._time_s(size, *(self._place(last, n) > 0 for n in (self._domain, self._leaf)))

    def hop_s(self, size: Floats, stage: float) -> Floats:
        """Return the time from a stage to the next. [s]"""
        ends = (
            self._place(stage + 1.0, n) > self._place(stage, n) for n in (self._domain, self._leaf)
        )
        return self._time_s(size, *ends)

    def far_s(self, size: Floats) -> Floats:
        """Return the time from a rank to the one `stride` further. [s]"""
        return self._time_s(size, self.stride >= self._domain, self.stride >= self._leaf)

    def _place(self, stage: Floats | float, devices: int) -> Floats:
        """Return the number of borders between so many devices ahead of a stage's last rank."""
        within = np.minimum(self.stride, devices)  # every border between larger stages is one
        return np.asarray(((stage + 1.0) * within - 1.0) // devices)

    def _times_s(self, size: Floats) -> Floats:
        """Return the time inside a domain, out of it, and out of a leaf switch, `(3, n)`. [s]"""
        return self.s_per_byte * size + self._latency_s[:, None]

    def _time_s(self, size: Floats, outside: Flags, beyond: Flags) -> Floats:
        inside_s, outside_s, beyond_s = self._times_s(size)
        return np.asarray(np.where(beyond, beyond_s, np.where(outside, outside_s, inside_s)))
