"""What all ways to average gradients share: weights before a sum, a division after it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

__all__ = ["PIECE", "Across", "averaged_", "weighed_"]

#: Elements that are added at once, so that sums stay in the processor's cache, and no more threads
#: are started for them (PyTorch shares what is larger among threads).
PIECE = 32_768


class Across(Protocol):
    """What leaders do among themselves."""

    def sum_(self, total: Tensor) -> None:
        """Replace a tensor by its sum over all leaders, and wait for it."""
        ...


def weighed_(bucket: Tensor, weight: float | None, ranks: int) -> None:
    """Give gradients their weight in a sum, in place."""
    if weight is not None:
        bucket.mul_(weight)
    elif bucket.dtype == torch.float16:
        bucket.div_(ranks)  # before the sum, which might be more than the type can hold


def averaged_(
    bucket: Tensor, total: Tensor, weight: float | None, weights: float, ranks: int
) -> None:
    """Make the mean of a sum; divided after the sum, so that those of whole numbers are exact."""
    if weight is not None:
        divisor = weights or 1.0  # nobody had a sample: all gradients are zero
    else:
        divisor = 1.0 if bucket.dtype == torch.float16 else float(ranks)
    for into, piece in zip(bucket.split(PIECE), total.split(PIECE), strict=True):
        if into.dtype == piece.dtype:
            torch.div(piece, divisor, out=into)
        else:
            into.copy_(piece).div_(divisor)
