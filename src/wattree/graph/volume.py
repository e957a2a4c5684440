"""Traffic volume of collectives, independent of the network."""

from __future__ import annotations

from typing import TypeVar

from wattree.arrays import Floats
from wattree.errors import CostError

Ranks = TypeVar("Ranks", int, float, "Floats")


def volume_factor(kind: str, ranks: Ranks) -> Ranks | float:
    """Return bytes each rank sends over the buffer size, by the ring algorithms.

    All-reduce `2 (n - 1) / n`, the least possible [2]; all-gather, reduce-scatter and all-to-all
    `(n - 1) / n`, with nccl-tests' meaning of size [1].

    Raises:
        CostError: There is no such collective.

    References:
        [1] NVIDIA, nccl-tests, doc/PERFORMANCE.md.
        [2] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
            Operations in MPICH", IJHPCA 19(1), 2005.
    """
    share = (ranks - 1.0) / ranks
    if kind == "all_reduce":
        return 2.0 * share
    if kind in {"all_gather", "reduce_scatter", "all_to_all"}:
        return share
    raise CostError(f"unknown collective '{kind}'")
