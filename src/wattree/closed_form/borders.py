"""Transfers over the borders of pipeline stages, in closed form, for arrays of strategies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from wattree.arrays import Flags, Floats
from wattree.closed_form.cost_table import BlockCostTable
from wattree.closed_form.stage_kinds import StageKinds
from wattree.strategy import AXES


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
        axes = self._tables.degrees.axes
        degrees = [axes[axis].astype(np.float64) for axis in AXES if axis != "pp"]
        stride = np.asarray(np.prod(degrees, axis=0))
        self._routes = [_Route(tables, stride, self._tables.ranks) for tables in by_pool]
        far = stride * np.maximum(axes["pp"] - 1.0, 1.0)  # from the first stage to the last
        self._mirrors = cache(lambda: [_Route(t, far, self._tables.ranks) for t in by_pool])

    def time_s(self, kinds: StageKinds, micro_batches: Floats) -> Floats:
        """Return the time that transfers add to a step, `(n,)`; 0 where slots wait for them. [s]"""
        # Two transfers over each border, of what differs from border to border.
        mean, most = self._transfers_s(kinds)
        through = 2 * mean
        if self.hidden:
            # The first micro-batch goes through all chunks before there is anything to hide
            # behind, and so does the last one's gradient.
            time_s = (kinds.stages * kinds.virtual - 1) * through
        else:
            all_s = 2 * most * micro_batches * kinds.virtual
            time_s = (kinds.stages - 1) * through + all_s
        return np.asarray(np.where((kinds.stages > 1) & ~kinds.is_split, time_s, 0.0))

    def transfer_s(self, kinds: StageKinds) -> Floats:
        """Return the time of one transfer over a border, on average, `(n,)`. [s]"""
        return np.where(kinds.stages > 1, self._transfers_s(kinds)[0], 0.0)

    def mirror_s(self, kinds: StageKinds, elements: Floats) -> Floats:
        """Return the time in which stages that hold the same chunks exchange gradients, `(n,)`. [s]

        Args:
            elements: What a device updates, `(n,)`.
        """
        if not (kinds.copies > 1).any():
            return np.zeros(len(elements))
        size = elements * self._tables.setting.software.reduce_bytes
        time_s = self._longest_s(size, self._used(kinds), self._mirrors())
        return np.asarray(np.where(kinds.copies > 1, time_s, 0.0))

    def _transfers_s(self, kinds: StageKinds) -> tuple[Floats, Floats]:
        """Return the time of one transfer over a border, on average and at most, `(n,)`. [s]"""
        at = kinds.pipeline, self._tables.block_of
        used, routes = self._used(kinds), self._routes
        mean, most = kinds.crossing_bytes(self._tables.boundary_bytes)
        return self._longest_s(mean[at], used, routes), self._longest_s(most[at], used, routes)

    def _used(self, kinds: StageKinds) -> Flags:
        """Return the pools that each strategy uses, `(pools, n)`."""
        used = np.array([contents.pools.sum(axis=1) > 0 for contents in kinds.helds])
        return np.asarray(used.T[:, kinds.pipeline])

    def _longest_s(self, size: Floats, used: Flags, routes: Sequence[_Route]) -> Floats:
        """Return the time of one transfer on the slowest pool that is used. [s]"""
        times = [route.time_s(size) for route in routes]
        if len(times) == 1:
            return times[0]
        both = zip(times, used, strict=True)
        return np.asarray(np.max([np.where(has, time, -np.inf) for time, has in both], axis=0))


class _Route:
    """The destinations of strategies' transfers on the devices of one pool."""

    def __init__(self, tables: BlockCostTable, stride: Floats, ranks: Floats) -> None:
        domain = tables.pool.domain_devices
        self.links = links = tables.rates.links
        self.crosses, self.beyond = stride >= domain, stride >= tables.leaf_devices
        self.goes_beyond = bool(self.beyond.any())
        self.stretch = tables.rates.collectives.transfer_stretch(stride, np.minimum(ranks, domain))
        self.network_s = np.where(self.crosses, links.alpha_network_s, 0.0)

    def time_s(self, size: Floats) -> Floats:
        """Return the time of one transfer of a given size. [s]"""
        links = self.links
        inside = size * self.stretch / links.scale_up_bytes_per_s
        one = np.where(self.crosses, size / links.adapter_bytes_per_s, inside)
        if self.goes_beyond:
            past = np.where(self.beyond, size / links.uplink_bytes_per_s, 0.0)
            one = np.maximum(one, past)
        return np.asarray(one + links.alpha_s / 2 + self.network_s)
