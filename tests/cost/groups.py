"""Groups of ranks on devices of the same numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattree.cost.algorithms import Call, schedule_of
from wattree.cost.algorithms.group import RankGroup
from wattree.cost.algorithms.messages import MessageSchedule


def contiguous_group(ranks: int, inside: int) -> RankGroup:
    """Return ranks 0, 1, … on the devices of the same numbers, `inside` of them in each domain."""
    devices = np.arange(ranks, dtype=np.int64)
    return RankGroup(devices=devices, node=devices // inside)


def uneven_exchange(matrix_bytes: np.ndarray) -> MessageSchedule:
    """Return a direct all-to-all in which rank i sends rank j what the matrix says. [B]"""
    ranks = len(matrix_bytes)
    call = Call(kind="all_to_all", size_bytes=0.0, group=contiguous_group(ranks, ranks))
    even = schedule_of(call, "direct")
    return replace(even, chunk_bytes=matrix_bytes[even.source, even.target])
