"""Gradients of a micro-batch reduced in buckets, in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from wattree.arrays import Floats
from wattree.closed_form.cost_table import BlockCostTable
from wattree.lowering.movement import bucket_bytes


class Buckets(NamedTuple):
    """Time of the buckets of a micro-batch, `(distinct,)` each. [s]

    Attributes:
        inner: Of all but the last of each chunk.
        whole: Of all.
        crowding: Of inner ones together with the gather of the block that comes next.
    """

    inner: Floats
    whole: Floats
    crowding: Floats


def buckets_of(tables: BlockCostTable, programs: Sequence[int]) -> Buckets:
    """Return the buckets of a chunk.

    Args:
        tables: Costs of blocks.
        programs: Of the chunk, in model order.
    """
    full = bucket_bytes(tables.options.traffic)
    time_s = size = inner = crowding = np.zeros(tables.every.shape[1])
    for following, number in reversed(list(pairwise(programs))):
        time_s, size = time_s + tables.every[number], size + tables.reduced_bytes[number]
        leaves = size >= full
        inner = inner + np.where(leaves, time_s, 0.0)
        together = np.minimum(time_s, tables.gather[following])
        crowding = crowding + np.where(leaves, together, 0.0)
        time_s, size = np.where(leaves, 0.0, time_s), np.where(leaves, 0.0, size)
    whole = sum((tables.every[number] for number in programs), np.zeros_like(inner))
    return Buckets(inner=inner, whole=whole, crowding=crowding)
