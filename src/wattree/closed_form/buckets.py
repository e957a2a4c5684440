"""Gradients of a micro-batch reduced in buckets, in closed form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattree.closed_form.tables import Tables
from wattree.lowering.movement import bucket_bytes

__all__ = ["waited_and_all"]

Floats = NDArray[np.float64]


def waited_and_all(tables: Tables, programs: Sequence[int]) -> tuple[Floats, Floats]:
    """Return the time of all buckets of a chunk but the last, and of all, `(distinct,)`. [s]

    Args:
        tables: Costs of blocks.
        programs: Of the chunk, in model order.
    """
    full = bucket_bytes(tables.options.traffic)
    time_s = size = waited = np.zeros(tables.every.shape[1])
    for number in reversed(programs[1:]):
        time_s, size = time_s + tables.every[number], size + tables.reduced_bytes[number]
        leaves = size >= full
        waited = waited + np.where(leaves, time_s, 0.0)
        time_s, size = np.where(leaves, 0.0, time_s), np.where(leaves, 0.0, size)
    return waited, sum((tables.every[number] for number in programs), np.zeros_like(waited))
