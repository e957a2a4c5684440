"""Code shared by all averaging methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

#: Elements that a processor adds at once, so that sums stay in its cache, and no more threads are
#: started for them (PyTorch shares what is larger among threads).
_PIECE = 32_768


class Across(Protocol):
    """Sums over processes that share no memory."""

    def sum_(self, total: Tensor) -> None:
        """Replace a tensor by its sum over all of them, and wait for it."""
        ...


def pieces_of(tensor: Tensor) -> Sequence[Tensor]:
    """Return the parts of a tensor, `(elements,)`, that are best worked on one after another."""
    return tensor.split(_PIECE) if tensor.device.type == "cpu" else (tensor,)


def made_small_(bucket: Tensor, ranks: int) -> None:
    """Divide before the sum where that might be more than the type can hold."""
    if bucket.dtype == torch.float16:
        bucket.div_(ranks)


def averaged_(bucket: Tensor, total: Tensor, ranks: int) -> None:
    """Make the mean of a sum; divided after the sum, so that those of whole numbers are exact.

    Args:
        total: The sum, of this type or a narrower one.
    """
    divisor = 1.0 if bucket.dtype == torch.float16 else float(ranks)
    for into, piece in zip(pieces_of(bucket), pieces_of(total), strict=True):
        if into.dtype == piece.dtype:
            torch.div(piece, divisor, out=into)
        else:
            into.copy_(piece).div_(divisor)


def all_reduce_bytes(total: Tensor, ranks: int) -> int:
    """Return the bytes that each of `ranks` sends in an all-reduce with the least traffic. [B]"""
    return round(2 * (ranks - 1) * total.nbytes / ranks)


def sum_rounded_once_(
    total: Tensor,
    ranks: int,
    all_to_all: Callable[[Tensor, Tensor], None],
    all_gather: Callable[[Tensor, Tensor], None],
) -> None:
    """Add up a tensor of a narrow type over ranks, in float32, in the order of ranks.

    Every rank gets its part from all, adds up, rounds, and gives the sum to all: the bytes of an
    all-reduce.

    Args:
        total: In place.
        all_to_all: `(received, sending)`, parts of one size.
        all_gather: `(whole, part)`.
    """
    part = -(-total.numel() // ranks)
    sending = total.new_zeros(part * ranks)
    sending[: total.numel()] = total
    received = torch.empty_like(sending)
    all_to_all(received, sending)
    mine = received.view(ranks, part).float().sum(0).to(total.dtype)
    all_gather(sending, mine)
    total.copy_(sending[: total.numel()])
