"""Groups of ranks on devices of the same numbers."""

from __future__ import annotations

import numpy as np

from wattree.cost.algorithms.group import RankGroup

__all__ = ["contiguous_group"]


def contiguous_group(ranks: int, inside: int) -> RankGroup:
    """Return ranks 0, 1, … on the devices of the same numbers, `inside` of them in each domain."""
    devices = np.arange(ranks, dtype=np.int64)
    return RankGroup(devices=devices, node=devices // inside)
