"""Means over all ranks at once, whatever devices they are on."""

from __future__ import annotations

import torch
from torch import Tensor

from wattree.runtime.reduce.mean import Across, averaged_, weighed_


class Flat:
    """Averages over all ranks by one sum over them.

    Args:
        across: To all other ranks.
        ranks: How many there are.
        compressed: Whether gradients travel as bfloat16; they are added up in float32.
    """

    def __init__(self, across: Across, *, ranks: int, compressed: bool = False) -> None:
        self._across, self._ranks, self.compressed = across, ranks, compressed
        self._weights = 0.0  # of the step: buckets after the first have those of the first

    def average_(self, bucket: Tensor, number: int, weight: float | None) -> None:
        """Replace gradients by their mean over all ranks, as `Hierarchical.average_` does."""
        weighed_(bucket, weight, self._ranks)
        total = bucket.to(torch.bfloat16) if self.compressed else bucket
        self._across.sum_(total)
        if weight is not None and number == 0:
            summed = torch.tensor([weight], dtype=torch.float64, device=bucket.device)
            self._across.sum_(summed)
            self._weights = float(summed)
        averaged_(bucket, total, weight, self._weights, self._ranks)

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""

    def fail(self, rank: int) -> None:
        """Do nothing: the others notice when this process ends."""
