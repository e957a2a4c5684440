"""NCCL's tuning model asked about one call, as its own source asks it."""

from __future__ import annotations

import numpy as np

from wattree.cost.algorithms import Protocol
from wattree.cost.algorithms.tuning import NCCL_KEYS, NcclSystem, nccl_columns, nccl_expected_s


def nccl_times_s(
    kind: str, size_bytes: float, system: NcclSystem
) -> dict[tuple[str, Protocol], float]:
    """Return the expected time of each algorithm and protocol that may be used. [s]"""
    columns = nccl_columns(kind, [system])
    times = nccl_expected_s(kind, np.array([size_bytes]), columns)[:, 0].tolist()
    return {key: time_s for key, time_s in zip(NCCL_KEYS, times, strict=True) if time_s < np.inf}


def nccl_choice(kind: str, size_bytes: float, system: NcclSystem) -> tuple[str, Protocol]:
    """Return the fastest algorithm and protocol; the first of equals, as NCCL tries them."""
    times = nccl_times_s(kind, size_bytes, system)
    return min(times, key=times.__getitem__)
