"""Transfers over the borders of pipeline stages, in closed form, for arrays of strategies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattree.closed_form.pipeline import Held
from wattree.closed_form.tables import Tables
from wattree.strategy import AXES

__all__ = ["Borders"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Borders:
    """What handing tensors from stage to stage takes.

    Which links a strategy's transfers cross follows from its degrees alone, so it is looked at once
    for all strategies, and not for each pipeline again.

    Args:
        by_pool: Costs of blocks, by pool.
        hidden: Whether transfers run beside computation.
    """

    def __init__(self, by_pool: Sequence[Tables], *, hidden: bool) -> None:
        self._tables, self._hidden = by_pool[0], hidden
        axes = self._tables.degrees.axes
        degrees = [axes[axis].astype(np.float64) for axis in AXES if axis != "pp"]
        stride = np.asarray(np.prod(degrees, axis=0))
        self._ways = [_Way(tables, stride, self._tables.ranks) for tables in by_pool]

    def time_s(self, index: Integers, held: Held, virtual: int, micro_batches: Floats) -> Floats:
        """Return what transfers add to a step of the strategies at `index`. [s]"""
        used = held.pools.sum(axis=1) > 0
        ways = [way for way, is_used in zip(self._ways, used, strict=True) if is_used]
        # Two transfers over each border, of what differs from border to border.
        sizes = (held.crossing @ self._tables.handed).sum(axis=0) / 2
        block = self._tables.block_of[index]
        mean = 2 * _longest_s(ways, index, sizes.mean(axis=0)[block])
        if self._hidden:
            # The first micro-batch goes through all chunks before there is anything to hide
            # behind, and so does the last one's gradient.
            return np.asarray((held.stages * virtual - 1) * mean)
        most = _longest_s(ways, index, sizes.max(axis=0)[block])
        return np.asarray((held.stages - 1) * mean + 2 * most * micro_batches * virtual)


class _Way:
    """Where the transfers of strategies go on the devices of one pool."""

    def __init__(self, tables: Tables, stride: Floats, ranks: Floats) -> None:
        domain = tables.pool.domain_devices
        self.links = links = tables.rates.links
        self.crosses, self.beyond = stride >= domain, stride >= tables.leaf_devices
        self.goes_beyond = bool(self.beyond.any())
        self.stretch = tables.rates.collectives.transfer_stretch(stride, np.minimum(ranks, domain))
        self.network_s = np.where(self.crosses, links.alpha_network_s, 0.0)

    def time_s(self, index: Integers, size: Floats) -> Floats:
        """Return the time of one transfer of so many bytes. [s]"""
        links = self.links
        inside = size * self.stretch[index] / links.scale_up_bytes_per_s
        one = np.where(self.crosses[index], size / links.adapter_bytes_per_s, inside)
        if self.goes_beyond:
            past = np.where(self.beyond[index], size / links.uplink_bytes_per_s, 0.0)
            one = np.maximum(one, past)
        return np.asarray(one + links.alpha_s / 2 + self.network_s[index])


def _longest_s(ways: Sequence[_Way], index: Integers, size: Floats) -> Floats:
    """Return the time of one transfer on the slowest of some pools. [s]"""
    times = [way.time_s(index, size) for way in ways]
    return times[0] if len(times) == 1 else np.asarray(np.max(times, axis=0))
