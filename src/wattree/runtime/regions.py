"""Borders between tensors that every rank has whole and tensors of which each has a part.

Compiled graphs break here, as at layers over several ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from wattree.runtime.group import Group
from wattree.runtime.shards import shard_offsets, shard_widths


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, sharded by PyTorch or not, without a copy."""
    to_local = getattr(tensor, "to_local", None)
    part: Tensor = tensor if to_local is None else to_local()
    return part


def own_part(x: Tensor, group: Group, dim: int = -1) -> Tensor:
    """Return this rank's part of a dim, as a view; its gradient is not exchanged."""
    offsets = shard_offsets(shard_widths(x.shape[dim], group.size))
    begin = offsets[group.rank]
    return x.narrow(dim, begin, offsets[group.rank + 1] - begin)


@_disable_dynamo
def split_parts(x: Tensor, group: Group, name: str, dim: int = -1) -> Tensor:
    """Return this rank's part of a replicated tensor; its gradient is gathered.

    Args:
        x: Equal on all ranks, `(…, n, …)`.
        name: What messages call the place.

    Returns:
        `(…, part, …)`.
    """
    if group.size == 1:
        return x
    part: Tensor = _Split.apply(x, group, name, dim)
    return part


@_disable_dynamo
def join_parts(x: Tensor, group: Group, length: int, name: str, dim: int = -1) -> Tensor:
    """Return the whole of a tensor split over ranks; each takes its part of the gradient.

    What follows must be the same on all ranks, as losses of whole outputs are.

    Args:
        x: `(…, part, …)`.
        length: Of the whole dim.
        name: What messages call the place.

    Returns:
        `(…, length, …)`.
    """
    if group.size == 1:
        return x
    whole: Tensor = _Join.apply(x, group, length, name, dim)
    return whole


@_disable_dynamo
def copy_parts(x: Tensor, group: Group, name: str) -> Tensor:
    """Return a tensor that every rank has; gradients, of which each has a part, are added up."""
    if group.size == 1:
        return x
    copy: Tensor = _Copy.apply(x, group, name)
    return copy


@_disable_dynamo
def sum_parts(x: Tensor, group: Group, name: str) -> Tensor:
    """Return the sum of a tensor over ranks; each rank already has its whole gradient."""
    if group.size == 1:
        return x
    total: Tensor = _Sum.apply(x, group, name)
    return total


def gathered_parts(x: Tensor, group: Group, length: int, name: str, dim: int = -1) -> Tensor:
    """Return the whole of a tensor split over ranks, without a gradient; as of `join_parts`."""
    # Parts differ in their first dim where they are gathered.
    part = x.movedim(dim, 0).contiguous()
    whole = group.all_gather(part, shard_widths(length, group.size), name).wait()
    return whole.movedim(0, dim).contiguous()


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, name: str, dim: int) -> Tensor:
        ctx.arguments = group, x.shape[dim], name, dim
        return own_part(x, group, dim).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gathered_parts(gradients[0], *ctx.arguments), None, None, None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any, x: Tensor, group: Group, length: int, name: str, dim: int
    ) -> Tensor:
        ctx.arguments = group, dim
        return gathered_parts(x, group, length, name, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return own_part(gradients[0], *ctx.arguments).contiguous(), None, None, None, None


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, name: str) -> Tensor:
        ctx.arguments = group, name
        return x.view_as(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        group, name = ctx.arguments
        own = gradient.clone(memory_format=torch.contiguous_format)
        return group.all_reduce(own, name).wait(), None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, name: str) -> Tensor:
        del ctx
        return group.all_reduce(x.clone(), name).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        del ctx
        return gradients[0], None, None
