"""Borders between tensors that every rank has whole and tensors whose features are spread."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wattree.runtime.group import Group
from wattree.runtime.shards import shard_offsets, shard_widths

__all__ = ["join_features", "own_features", "split_features"]


def own_features(x: Tensor, group: Group) -> Tensor:
    """Return this rank's shard of the last dim, as a view without a gradient's exchange."""
    offsets = shard_offsets(shard_widths(x.shape[-1], group.size))
    return x[..., offsets[group.rank] : offsets[group.rank + 1]]


def split_features(x: Tensor, group: Group, name: str) -> Tensor:
    """Return this rank's shard of what all have whole; its gradient is gathered.

    Args:
        x: `(…, features)`, equal on all ranks.
        group: These ranks.
        name: What messages call the place.

    Returns:
        `(…, shard)`.
    """
    if group.size == 1:
        return x
    shard: Tensor = _Split.apply(x, group, name)
    return shard


def join_features(x: Tensor, group: Group, width: int, name: str) -> Tensor:
    """Return the whole of what is spread over ranks; each takes its part of the gradient.

    What follows must be the same on all ranks, as losses of whole outputs are.

    Args:
        x: `(…, shard)`.
        group: The ranks.
        width: Of the whole.
        name: What messages call the place.

    Returns:
        `(…, width)`.
    """
    if group.size == 1:
        return x
    whole: Tensor = _Join.apply(x, group, width, name)
    return whole


def _gathered(x: Tensor, group: Group, width: int, name: str) -> Tensor:
    # Parts differ in their first dim where they are gathered.
    part = x.movedim(-1, 0).contiguous()
    return group.all_gather(part, shard_widths(width, group.size), name).wait().movedim(0, -1)


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, name: str) -> Tensor:
        ctx.group, ctx.width, ctx.name = group, x.shape[-1], name
        return own_features(x, group).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _gathered(gradients[0], ctx.group, ctx.width, ctx.name).contiguous(), None, None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, width: int, name: str) -> Tensor:
        ctx.group = group
        return _gathered(x, group, width, name).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return own_features(gradients[0], ctx.group).contiguous(), None, None, None
